fn request(runtime: &kiln::Runtime, image: &kiln::Image, tile: usize) -> kiln::BuildRequest {
    runtime.build(image).specialize(0, tile)
}

fn main() {}
