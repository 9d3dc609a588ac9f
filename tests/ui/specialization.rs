fn request(runtime: &kiln::Runtime, module: &kiln::Module, tile: usize) -> kiln::BuildRequest {
    runtime.build(module).specialize(0, tile)
}

fn main() {}
