use kiln::images::{R, Sampler};
use kiln::{Buffer, Image};

kiln::kernels! {
    mod blur = opencl_c("kernel void blur(read_only image2d_t from, sampler_t at, write_only image2d_t to) {}");
}

fn launch(kernels: &blur::Kernels, from: &Image<R<f32>>, to: &Buffer<R<f32>>) -> kiln::Launch {
    kernels.blur([16, 16], from, Sampler::new(), to.read_only())
}

fn main() {}
