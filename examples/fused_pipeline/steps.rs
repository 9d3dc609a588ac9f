//! Launches that record what they read and write, and the memory traffic of launches that run as one
//! kernel.

use std::collections::BTreeMap;

use kiln::{Argument, Buffer, BufferReport, Kernel, Launch, NdSize};

/// Device memory with a name for reports.
#[derive(Clone)]
pub(crate) struct Named<T> {
    pub(crate) name: &'static str,
    pub(crate) buffer: Buffer<T>,
}

/// Access of a launch to the memory that is passed for one parameter.
#[derive(Clone, Copy)]
struct Use {
    parameter: usize,
    memory: &'static str,
    bytes: usize,
    is_written: bool,
}

/// Launch that is not submitted yet.
pub(crate) struct Step {
    pub(crate) launch: Launch,
    pub(crate) uses: Uses,
}

/// Memory accesses of a launch, by its parameters.
#[derive(Clone)]
pub(crate) struct Uses {
    pub(crate) kernel: String,
    parameters: usize,
    memory: Vec<Use>,
}

impl Step {
    pub(crate) fn new(kernel: &Kernel, range: impl Into<NdSize>) -> Self {
        let uses = Uses { kernel: kernel.name().to_owned(), parameters: 0, memory: Vec::new() };
        Self { launch: kernel.launch(range), uses }
    }

    pub(crate) fn local(mut self, size: usize) -> Self {
        self.launch = self.launch.local(size);
        self
    }

    pub(crate) fn reads<T: bytemuck::Pod>(self, memory: &Named<T>) -> Self {
        self.uses(memory, false).value(memory.buffer.read_only())
    }

    pub(crate) fn writes<T: bytemuck::Pod>(self, memory: &Named<T>) -> Self {
        self.uses(memory, true).value(memory.buffer.write_only())
    }

    pub(crate) fn value(mut self, value: impl Argument) -> Self {
        self.launch = self.launch.arg(value);
        self.uses.parameters += 1;
        self
    }

    fn uses<T: bytemuck::Pod>(mut self, memory: &Named<T>, is_written: bool) -> Self {
        let bytes = memory.buffer.len() * size_of::<T>();
        let parameter = self.uses.parameters;
        self.uses.memory.push(Use { parameter, memory: memory.name, bytes, is_written });
        self
    }
}

/// Returns the number of bytes that a launch reads and writes, counting each buffer whole.
pub(crate) fn traffic(launch: &Uses) -> usize {
    launch.memory.iter().map(|used| used.bytes).sum()
}

/// Returns the number of bytes that launches read and write if they run as one kernel. Memory that
/// several of them read is read once, and memory that one of them writes is not read again.
pub(crate) fn traffic_as_one(launches: &[Uses], internalized: &[&str]) -> usize {
    // Size of each buffer, whether it is read before it is written, and whether it is written.
    let mut crossings = BTreeMap::<_, (usize, bool, bool)>::new();
    for used in launches.iter().flat_map(|launch| &launch.memory) {
        let (_, is_read, is_written) =
            crossings.entry(used.memory).or_insert((used.bytes, false, false));
        *is_read |= !used.is_written && !*is_written;
        *is_written |= used.is_written;
    }
    let in_memory = crossings.iter().filter(|(memory, _)| !internalized.contains(memory));
    in_memory
        .map(|(_, &(bytes, read, written))| bytes * (usize::from(read) + usize::from(written)))
        .sum()
}

/// Returns the names of the memory that the fused kernel does without.
pub(crate) fn internalized(launches: &[Uses], buffers: &[BufferReport]) -> Vec<&'static str> {
    let internalized = buffers.iter().filter(|buffer| buffer.internalized.is_some());
    let name = |buffer: &BufferReport| {
        let &(launch, parameter) = buffer.parameters.first()?;
        let mut memory = launches.get(launch)?.memory.iter();
        Some(memory.find(|used| used.parameter == parameter)?.memory)
    };
    internalized.filter_map(name).collect()
}
