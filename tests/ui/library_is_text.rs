kiln::device_library!("bool.rs");

fn main() {}
