kiln::kernels! {
    mod physics = opencl_c("
        typedef struct { float x, y; } Point;
        kernel void step(global Point *points) {}
    ") {
        type Point = crate::Point;
    }
}

#[derive(Clone, Copy)]
pub struct Point {
    x: f32,
    y: f32,
}

fn main() {}
