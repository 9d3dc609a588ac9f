fn launch(kernel: &kiln::Kernel, n: u32) -> kiln::Launch {
    kernel.launch(n)
}

fn main() {}
