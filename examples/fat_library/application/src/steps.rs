//! Steps of the example, with a report of each.

use std::collections::HashSet;

use kiln::devices::ModuleFormat;
use kiln::{Module, Program, Result, Runtime};

const LEN: usize = 1 << 16;

/// Builds and launches programs, and prints how they were made.
pub struct Steps<'a> {
    rt: &'a Runtime,
    /// Counters of the runtime before the next step.
    compiles: u64,
    links: u64,
}

impl<'a> Steps<'a> {
    pub fn new(rt: &'a Runtime) -> Self {
        Self { rt, compiles: 0, links: 0 }
    }

    /// Builds a module, prints where its symbols come from, and launches a kernel on elements of 0.5, which
    /// become `expected`.
    pub async fn run(
        &mut self,
        step: &str,
        module: &Module,
        kernel: &str,
        expected: f32,
    ) -> Result<Program> {
        println!("\n{step}:");
        let program = self.rt.build(module).await?;
        for symbol in program.linked_symbols() {
            println!("  {symbol}");
        }
        let stats = self.rt.stats();
        let (compiles, links) =
            (stats.builds.compiles - self.compiles, stats.builds.links - self.links);
        let (built, nodes) = (compiles + links, self.nodes(&program));
        println!(
            "  nodes built: {built}, reused: {}; the program: {}",
            nodes - built,
            program.origin()
        );
        self.launch(&program, kernel, expected).await?;
        let stats = self.rt.stats();
        (self.compiles, self.links) = (stats.builds.compiles, stats.builds.links);
        Ok(program)
    }

    /// Returns the number of nodes that a program is made of: objects of its modules and the linked program,
    /// or one program if Kiln merges the modules.
    fn nodes(&self, program: &Program) -> u64 {
        if !self.rt.device().links.contains(&ModuleFormat::SpirV) {
            return 1;
        }
        let symbols = program.linked_symbols();
        let modules: HashSet<_> =
            symbols.iter().flat_map(|it| [it.importer.digest(), it.exporter.digest()]).collect();
        modules.len() as u64 + 1
    }

    /// Launches a kernel, and checks the result.
    pub async fn launch(&self, program: &Program, kernel: &str, expected: f32) -> Result<()> {
        let x = self.rt.buffer_from(vec![0.5f32; LEN]).await?;
        // SAFETY: the kernels access the element of their work-item, and there are as many elements.
        let kernel = unsafe { program.kernel(kernel)? };
        let queue = self.rt.queue();
        queue.submit(kernel.launch(LEN).args((&x,)))?;
        assert!(queue.read(&x).await?.iter().all(|x| *x == expected));
        Ok(())
    }
}
