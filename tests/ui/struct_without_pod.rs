#[derive(Clone, Copy)]
struct Params {
    gain: f32,
}

fn launch(kernel: &kiln::Kernel, x: &kiln::Buffer<f32>) -> kiln::Launch {
    kernel.launch(16).args((x, Params { gain: 0.5 }))
}

fn main() {}
