fn launch(kernel: &kiln::Kernel, width: usize, height: usize) -> kiln::Launch {
    kernel.launch([width, height]).local((8, 8))
}

fn main() {}
