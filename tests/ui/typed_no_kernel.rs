kiln::kernels! {
    mod helpers = opencl_c("float twice(float x) { return 2 * x; }");
}

fn main() {}
