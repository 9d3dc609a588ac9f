fn launch(kernel: &kiln::Kernel, x: &[f32]) -> kiln::Launch {
    kernel.launch(16).args((x, 1.0f32))
}

fn main() {}
