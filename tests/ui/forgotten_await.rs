fn launch(runtime: &kiln::Runtime, kernel: &kiln::Kernel) -> kiln::Launch {
    let x = runtime.buffer_from(vec![1.0f32; 16]);
    kernel.launch(16).args((&x, 1.0f32))
}

fn main() {}
