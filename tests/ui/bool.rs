fn launch(kernel: &kiln::Kernel, x: &kiln::Buffer<f32>) -> kiln::Launch {
    kernel.launch(16).args((x, true))
}

fn main() {}
