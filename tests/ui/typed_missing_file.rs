kiln::kernels! {
    mod first = "typed_missing_file.cl";
}

fn main() {
    let _ = first::Kernels::module();
}
