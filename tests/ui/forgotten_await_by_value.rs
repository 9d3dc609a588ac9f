fn launch(runtime: &kiln::Runtime, kernel: &kiln::Kernel) -> kiln::Launch {
    kernel.launch(16).arg(runtime.buffer_from(vec![1.0f32; 16]))
}

fn main() {}
