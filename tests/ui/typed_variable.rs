kiln::kernels! {
    mod generated = concat!(env!("NO_SUCH_VARIABLE"), "/step.cl");
}

fn main() {}
