kiln::kernels! {
    mod chosen = opencl_c("kernel void step(int x) {}") {
        kernels = [step, stop];
    }
}

fn main() {}
