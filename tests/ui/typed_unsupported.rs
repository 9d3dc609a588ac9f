kiln::kernels! {
    mod filters = opencl_c("
        kernel void blur(read_only image2d_depth_t from, global float *to) {}
        kernel void pick(global float **from, size_t n, bool all, float *to) {}
        kernel void fine(global float *to) {}
    ");
}

fn launch(kernels: &filters::Kernels, to: &kiln::Buffer<f32>) -> kiln::Launch {
    kernels.fine(16, to)
}

fn main() {}
