kiln::device_library!(opencl_c: "float tone(float x) { return x; }", exporting: []);

fn main() {}
