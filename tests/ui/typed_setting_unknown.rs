kiln::kernels! {
    mod setting = opencl_c("kernel void step(int x) {}") {
        option = "-D N=4";
    }
}

fn main() {}
