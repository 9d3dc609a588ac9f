kiln::kernels! {
    mod open = opencl_c("
        #define BODY {
        kernel void k(global float *x) BODY
    ");
    mod twice = opencl_c("kernel void k(int x) {}\nkernel void k(float x) {}");
}

fn main() {}
