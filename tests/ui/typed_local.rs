kiln::kernels! {
    mod sum = opencl_c("kernel void sum(local float *scratch, global float4 *x) {}");
}

fn launch(kernels: &sum::Kernels, x: &kiln::Buffer<[f32; 4]>) -> kiln::Launch {
    kernels.sum(16, kiln::Local::<u32>::new(16), x)
}

fn main() {}
