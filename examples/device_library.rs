//! Device code in libraries: two applications call a function from a library that is registered at run
//! time. A second version of the library replaces it while launches with the first are being awaited.
//!
//! ```sh
//! cargo run --release --example device_library
//! ```
//!
//! After each step it prints how many nodes of the build graph were built for it, and how many existed
//! already. The nodes are objects, one for each module, and the programs that are linked from them.

#![allow(clippy::print_stdout)]

use std::error::Error;

use futures::future::join_all;
use kiln::{Buffer, CacheConfig, Module, Runtime};

const LEN: usize = 1 << 16;
const LAUNCHES: usize = 50;

/// Declaration of the library's function, for the applications.
const HEADER: &str = "float tone(float x);";

fn main() -> Result<(), Box<dyn Error>> {
    smol::block_on(async {
        // Without a disk cache, every run prints the same.
        let rt = Runtime::builder().cache(CacheConfig::memory_only()).build().await?;
        println!("{}, {}\n", rt.device(), rt.device().platform);

        let picture = application("picture", "x[i] = tone(x[i]);");
        let preview = application("preview", "x[i] = (i % 4) ? x[i] : tone(x[i]);");
        // The second version imports a function from another library.
        let first = library("float tone(float x) { return x * 2; }", "tone");
        let curve = library("float curve(float x) { return x * x; }", "curve");
        let second =
            library("float curve(float x); float tone(float x) { return curve(x) + 1; }", "tone")
                .importing(["curve"]);

        println!("{:<46} {:>8} {:>8} {:>8}", "", "compiled", "linked", "reused");
        let mut table = Table { rt: &rt, compiles: 0, links: 0 };

        rt.register(&first)?;
        let old = rt.build(&picture).await?;
        table.row("picture, with version 1", 2);
        rt.build(&preview).await?;
        table.row("preview, with version 1", 2);

        // SAFETY: a work-item accesses its own element, and there are as many elements.
        let (old, x) = (unsafe { old.kernel("picture")? }, buffer(&rt).await?);
        let queue = rt.queue();
        queue.submit(old.launch(LEN).args((&x,)))?.await?;
        let launches = (1..LAUNCHES).map(|_| queue.submit(old.launch(LEN).args((&x,))));
        let launches = launches.collect::<Result<Vec<_>, _>>()?;
        // Built programs do not change: the launches finish with version 1.
        rt.unregister(&first);
        rt.register(&curve)?;
        rt.register(&second)?;
        let swapped = async {
            let picture = rt.build(&picture).await?;
            table.row("picture, with version 2, while launches run", 3);
            Ok::<_, kiln::Error>(picture)
        };
        let (ended, new) = futures::join!(join_all(launches), swapped);
        ended.into_iter().collect::<Result<Vec<_>, _>>()?;
        let new = new?;
        rt.build(&preview).await?;
        table.row("preview, with version 2", 3);

        rt.unregister(&second);
        rt.register(&first)?;
        rt.build(&picture).await?;
        table.row("picture, with version 1 again", 2);

        let grown = queue.read(&x).await?;
        assert!(grown.iter().all(|x| *x == 2.0f32.powi(LAUNCHES as i32)));
        // SAFETY: as above.
        let (new, x) = (unsafe { new.kernel("picture")? }, buffer(&rt).await?);
        queue.submit(new.launch(LEN).args((&x,)))?;
        assert!(queue.read(&x).await?.iter().all(|x| *x == 2.0));
        println!("\n{LAUNCHES} launches of version 1 and one of version 2 are right");
        Ok(())
    })
}

/// Returns a module with a kernel that imports `tone` from whichever library is registered.
fn application(kernel: &str, body: &str) -> Module {
    let text = format!(
        "{HEADER}
         kernel void {kernel}(global float *x) {{ size_t i = get_global_id(0); {body} }}"
    );
    Module::opencl_c(text).importing(["tone"])
}

fn library(text: &str, exported: &str) -> Module {
    Module::opencl_c(text).exporting([exported])
}

async fn buffer(rt: &Runtime) -> kiln::Result<Buffer<f32>> {
    rt.buffer_from(vec![1.0; LEN]).await
}

/// Table of each step's contribution to the runtime's counters.
struct Table<'a> {
    rt: &'a Runtime,
    compiles: u64,
    links: u64,
}

impl Table<'_> {
    /// Prints the row of a step that needs this number of modules and one program linked from them.
    fn row(&mut self, step: &str, modules: u64) {
        let stats = self.rt.stats();
        let (compiles, links) =
            (stats.builds.compiles - self.compiles, stats.builds.links - self.links);
        (self.compiles, self.links) = (stats.builds.compiles, stats.builds.links);
        println!("{step:<46} {compiles:>8} {links:>8} {:>8}", modules + 1 - compiles - links);
    }
}
