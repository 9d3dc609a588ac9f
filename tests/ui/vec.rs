fn launch(kernel: &kiln::Kernel) -> kiln::Launch {
    kernel.launch(16).args((vec![1.0f32; 16], 1.0f32))
}

fn main() {}
