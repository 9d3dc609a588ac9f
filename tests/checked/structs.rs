//! Elements of buffers that are structs in the kernel: their sizes are compared when a launch is submitted.

use kiln::{ErrorKind, Kernel, Module, Runtime};
use support::everywhere;
use support::tools::has_clang;

/// Struct of 32 bytes, or of 48 bytes with the option `-D WIDE`.
const KERNEL: &str = "
    typedef struct {
        float4 position, velocity;
    #ifdef WIDE
        float4 color;
    #endif
    } Particle;

    kernel void advance(global Particle *particles, float seconds) {
        global Particle *p = &particles[get_global_id(0)];
        p->position += seconds * p->velocity;
    }
";

/// Position and velocity.
type Particle = [[f32; 4]; 2];

const PARTICLE: Particle = [[1.0; 4], [2.0; 4]];

/// Returns the kernel, built with options.
async fn advance(rt: &Runtime, options: &str) -> Kernel {
    let module = Module::opencl_c(KERNEL).with_options(options);
    let program = rt.build(&module).checked().await.expect("it builds");
    program.kernel("advance").expect("it is checked")
}

everywhere! {
    async fn elements_have_the_size_of_the_struct_that_the_kernel_was_built_with(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let particles = rt.buffer_from(vec![PARTICLE; 12]).await.expect("there is room");
        let queue = rt.queue();
        let read = async || queue.read(&particles).await.expect("it was written");
        let fitting = advance(&rt, "").await;
        queue.submit(fitting.launch(12).args((&particles, 0.5f32))).expect("it fits");
        assert_eq!(read().await, [[[2.0f32; 4], [2.0; 4]]; 12]);

        let wide = advance(&rt, "-D WIDE").await;
        // The first launch of a kernel is analysed, further ones may be known.
        for _ in 0..2 {
            let error = match queue.submit(wide.launch(8).args((&particles, 0.5f32))) {
                Ok(event) => event.await.expect_err("the elements are too small"),
                Err(error) => error,
            };
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            let text = error.to_string();
            assert!(text.contains("32 bytes each") && text.contains("48 bytes"), "{text}");
            queue.write(&particles, vec![PARTICLE; 12]).expect("it fits");
        }
        // The members of structs are elements of any struct.
        let members = particles.cast::<f32>().expect("they are numbers");
        queue.submit(wide.launch(8).args((&members, 0.5f32))).expect("it fits");
        assert_eq!(read().await[0], [[2.0f32; 4], [2.0; 4]]);
    }
}
