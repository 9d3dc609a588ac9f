kiln::kernels! {
    mod alone = opencl_c("kernel void step(global float *x) {}") {
        type float = Scalar;
    }
}

type Scalar = f32;

fn main() {}
