kiln::kernels! {
    mod missing = opencl_c("
        typedef struct { float4 position; float mass; } Particle;
        kernel void step(global Particle *particles, half weight) {}
    ");
    mod stated = opencl_c("
        typedef struct { float4 position; float mass; } Particle;
        kernel void step(global Particle *particles) {}
    ") {
        type Particle = super::Particle;
    }
    mod unused = opencl_c("kernel void step(global float *x) {}") {
        type Particle = crate::Particle;
    }
}

type Particle = [f32; 4];

fn main() {}
