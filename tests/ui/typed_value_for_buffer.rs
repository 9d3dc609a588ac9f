kiln::kernels! {
    mod saxpy = opencl_c("kernel void saxpy(float a, global const float *x, global float *y) {}");
}

fn launch(kernels: &saxpy::Kernels, x: &kiln::Buffer<f32>) -> kiln::Launch {
    kernels.saxpy(16, 3.0, x, 1.0f32)
}

fn main() {}
