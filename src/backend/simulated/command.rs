//! Operations in a form that outlives the call that enqueues them, and their execution.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use kiln_compiler::NdRange;
use kiln_spirv::AddressSpace;

use super::codes::driver_error;
use super::counters::count;
use super::event::Event;
use super::host_memory::HostMemory;
use super::invocation::{BoundArgument, Invocation};
use super::memory::Region;
use super::pixels::PixelAction;
use super::program::Code;
use super::rows::RowsAction;
use super::shared::{Behaviour, Shared};
use crate::backend::{Argument, FAILED_DEPENDENCY, HostAccess, Kernel, NativeEvent, Operation};
use crate::error::{Error, ErrorKind, Result, panic_message};

/// Operation that waits for its turn.
///
/// Keeps everything of the device that it uses alive, as a driver does. Host memory is only pointed to: the
/// caller that enqueued the operation guarantees that the pointers are valid until its event ends.
pub(super) enum Action {
    Launch { kernel: Arc<Code>, call: Option<Box<ClosureCall>> },
    Write { to: Region, from: HostMemory<*const u8> },
    Read { from: Region, to: HostMemory<*mut u8> },
    Fill { region: Region, pattern: Box<[u8]> },
    Copy { from: Region, to: Region },
    Map { region: Region, to: HostMemory<*mut u8> },
    Unmap { region: Region, from: HostMemory<*mut u8>, access: HostAccess },
    // Boxed: these are large and rare.
    Rows(Box<RowsAction>),
    Pixels(Box<PixelAction>),
    Marker,
}

/// Launch of a kernel that has a behaviour.
pub(super) struct ClosureCall {
    behaviour: Behaviour,
    arguments: Vec<BoundArgument>,
    range: NdRange,
}

impl Action {
    /// Checks `operation` as a driver does, and captures everything that the caller may change once it is
    /// enqueued.
    ///
    /// # Safety
    ///
    /// Until the action has run or is dropped, host memory that the operation names stays valid, and no other
    /// code accesses the part of it that is written.
    pub(super) unsafe fn capture(shared: &Arc<Shared>, operation: &Operation<'_>) -> Result<Self> {
        Ok(match *operation {
            Operation::Launch { kernel, arguments, range } => {
                Self::capture_launch(shared, kernel, arguments, range)?
            }
            Operation::Write { to, offset, from, bytes } => Self::Write {
                to: Region::of(to, &shared.counters)?.part(offset, bytes)?,
                from: HostMemory(from),
            },
            Operation::Read { from, offset, to, bytes } => Self::Read {
                from: Region::of(from, &shared.counters)?.part(offset, bytes)?,
                to: HostMemory(to),
            },
            Operation::Fill { memory, offset, bytes, pattern } => {
                let length = pattern.len();
                let fits = length.is_power_of_two()
                    && length <= 128
                    && offset.is_multiple_of(length)
                    && bytes.is_multiple_of(length);
                if !fits {
                    return Err(driver_error(
                        -30,
                        "CL_INVALID_VALUE",
                        format!(
                            "cannot fill {bytes} bytes at offset {offset} with patterns of \
                             {length} bytes"
                        ),
                    ));
                }
                Self::Fill {
                    region: Region::of(memory, &shared.counters)?.part(offset, bytes)?,
                    pattern: pattern.into(),
                }
            }
            Operation::Copy { from, from_offset, to, to_offset, bytes } => {
                let from = Region::of(from, &shared.counters)?.part(from_offset, bytes)?;
                let to = Region::of(to, &shared.counters)?.part(to_offset, bytes)?;
                if from.overlaps(&to) {
                    return Err(driver_error(
                        -48,
                        "CL_MEM_COPY_OVERLAP",
                        "the source and the destination of the copy overlap",
                    ));
                }
                Self::Copy { from, to }
            }
            Operation::Map { memory, offset, bytes, start, .. } => {
                let region = Region::of(memory, &shared.counters)?.part(offset, bytes)?;
                let to = region.begin_mapping();
                start.store(to, SeqCst);
                Self::Map { region, to: HostMemory(to) }
            }
            Operation::Unmap { memory, offset, bytes, access, start } => Self::Unmap {
                region: Region::of(memory, &shared.counters)?.part(offset, bytes)?,
                from: HostMemory(start),
                access,
            },
            Operation::Rows(operation) => {
                Self::Rows(Box::new(RowsAction::capture(shared, &operation)?))
            }
            Operation::Image(operation) => {
                Self::Pixels(Box::new(PixelAction::capture(shared, &operation)?))
            }
            Operation::Marker => Self::Marker,
        })
    }

    fn capture_launch(
        shared: &Arc<Shared>,
        kernel: &dyn Kernel,
        arguments: &[Argument<'_>],
        range: &NdRange,
    ) -> Result<Self> {
        let kernel = Code::of(kernel, shared)?;
        check_arguments(kernel, arguments)?;
        // A launch without effect needs no arguments. Not copying them keeps it cheap.
        let call = match kernel.slot.behaviour() {
            None => {
                arguments.iter().try_for_each(|argument| match argument {
                    Argument::Memory(memory) => Region::of(*memory, &shared.counters).map(drop),
                    _ => Ok(()),
                })?;
                None
            }
            Some(behaviour) => {
                let arguments =
                    arguments.iter().map(|argument| BoundArgument::new(argument, &shared.counters));
                let arguments = arguments.collect::<Result<_>>()?;
                Some(Box::new(ClosureCall { behaviour, arguments, range: *range }))
            }
        };
        Ok(Self::Launch { kernel: kernel.clone(), call })
    }

    /// Returns the number of bytes that the action moves between the host's memory and the device's.
    fn transferred(&self) -> usize {
        match self {
            Self::Write { to: region, .. } | Self::Read { from: region, .. } => region.len(),
            Self::Rows(action) => action.transferred(),
            Self::Pixels(action) => action.transferred(),
            _ => 0,
        }
    }

    /// Performs the action.
    fn run(self) -> Result<()> {
        match self {
            Self::Launch { kernel, call } => {
                if let Some(fault) = kernel.slot.faults.take() {
                    return Err(fault.command_error());
                }
                if let Some(call) = call {
                    call.run(&kernel)?;
                }
            }
            Self::Write { to, from } => to.with_mut(|bytes| {
                // SAFETY: the caller that enqueued the action vouches for as many bytes at `from`. Host memory
                // never overlaps device memory, which this module exposes only by copies.
                unsafe { ptr::copy_nonoverlapping(from.0, bytes.as_mut_ptr(), bytes.len()) }
            }),
            Self::Read { from, to } => from.with(|bytes| {
                // SAFETY: as for writing, and no other code accesses the bytes at `to`.
                unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.0, bytes.len()) }
            }),
            Self::Fill { region, pattern } => region.with_mut(|bytes| {
                let mut filled = pattern.len().min(bytes.len());
                bytes[..filled].copy_from_slice(&pattern[..filled]);
                while filled < bytes.len() {
                    let more = filled.min(bytes.len() - filled);
                    bytes.copy_within(..more, filled);
                    filled += more;
                }
            }),
            // Copies by way of the host, because holding two locks at a time could deadlock with another native
            // queue.
            Self::Copy { from, to } => {
                let copied = from.with(<[u8]>::to_vec);
                to.with_mut(|bytes| bytes.copy_from_slice(&copied));
            }
            Self::Map { region, to } => region.with(|bytes| {
                // SAFETY: the host memory of the mapping has as many bytes, and nobody knows its address yet.
                unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.0, bytes.len()) }
            }),
            Self::Unmap { region, from, access } => {
                if access != HostAccess::Read {
                    region.with_mut(|bytes| {
                        // SAFETY: the host memory of the mapping exists until its end below, and the caller
                        // that enqueued the action vouches that the host no longer writes it.
                        unsafe { ptr::copy_nonoverlapping(from.0, bytes.as_mut_ptr(), bytes.len()) }
                    });
                }
                region.end_mapping(from.0);
            }
            Self::Rows(action) => action.run(),
            Self::Pixels(action) => action.run(),
            Self::Marker => {}
        }
        Ok(())
    }
}

impl ClosureCall {
    fn run(&self, kernel: &Code) -> Result<()> {
        let mut invocation = Invocation::new(&kernel.signature, &self.range, &self.arguments);
        // The closure's own state is the only thing that a panic can leave broken.
        catch_unwind(AssertUnwindSafe(|| (self.behaviour)(&mut invocation))).map_err(|panic| {
            Error::new(
                ErrorKind::Panicked,
                format!(
                    "the kernel `{}` panicked: {}",
                    kernel.signature.name,
                    panic_message(panic)
                ),
            )
        })
    }
}

/// Fails if the arguments are of the wrong number or kind, as a driver does.
fn check_arguments(kernel: &Code, arguments: &[Argument<'_>]) -> Result<()> {
    let Some(parameters) = &kernel.signature.parameters else {
        return Ok(());
    };
    let fits = parameters.len() == arguments.len()
        && parameters.iter().zip(arguments).all(|(parameter, argument)| {
            match parameter.address_space {
                Some(AddressSpace::Global | AddressSpace::Constant) => {
                    matches!(argument, Argument::Memory(_))
                }
                Some(AddressSpace::Local) => matches!(argument, Argument::Local(1..)),
                Some(AddressSpace::Private) => {
                    matches!(argument, Argument::Value(_) | Argument::Sampler(_))
                }
                None => true,
            }
        });
    if fits {
        return Ok(());
    }
    Err(driver_error(
        -52,
        "CL_INVALID_KERNEL_ARGS",
        format!(
            "the arguments do not fit the parameters of the kernel `{}`",
            kernel.signature.name
        ),
    ))
}

/// Action with the events that it waits for.
pub(super) struct Command {
    action: Action,
    wait: Vec<Arc<Event>>,
    pub(super) event: Arc<Event>,
    /// Whether the caller has the event. If not, the next event that a caller has reports a failure.
    is_reported: bool,
    /// Number of bytes that the command takes of the driver's own memory, and whether that many were left.
    staged: usize,
    pub(super) has_room: bool,
}

impl Command {
    /// Creates a command. `wait` contains only events of this device.
    pub(super) fn new(
        shared: &Arc<Shared>,
        action: Action,
        wait: &[Arc<dyn NativeEvent>],
        event: Arc<Event>,
        is_reported: bool,
    ) -> Result<Self> {
        let wait = wait.iter().map(|event| Event::shared_of(event, shared));
        let wait = wait.collect::<Result<_>>()?;
        let staged = action.transferred();
        let has_room = shared.staging.take(staged);
        Ok(Self { action, wait, event, is_reported, staged, has_room })
    }

    /// Blocks until all events that the command waits for have ended.
    pub(super) fn wait(&self) {
        for other in &self.wait {
            other.wait();
        }
    }

    /// Runs the action and ends its event. All events that the command waits for must have ended. `unreported` is
    /// the failure of an earlier command of the native queue that no event has reported yet.
    pub(super) fn run(self, shared: &Shared, unreported: &mut Option<Error>) {
        let Self { action, wait, event, is_reported, staged, .. } = self;
        let blocked = wait.iter().any(|other| other.failed());
        // Dropped before the event ends, so that the command no longer holds anything when its end is reported.
        drop(wait);
        event.started();
        let mut outcome = perform(shared, action, blocked);
        shared.staging.give(staged);
        if is_reported {
            outcome = unreported.take().map_or(outcome, Err);
        } else if let Err(error) = &outcome {
            unreported.get_or_insert_with(|| error.clone());
        }
        event.end(outcome);
    }
}

/// Runs `action` when its turn has come, or fails it if it is `blocked` by the failure of another command.
pub(super) fn perform(shared: &Shared, action: Action, blocked: bool) -> Result<()> {
    shared.command_delay.spend();
    if blocked {
        return Err(driver_error(
            -14,
            FAILED_DEPENDENCY,
            "an event that the command waited for failed",
        ));
    }
    action.run()
}

/// Checks, captures and counts `operation`, or fails if a fault was requested.
///
/// # Safety
///
/// As for [`Action::capture`].
pub(super) unsafe fn admit(
    shared: &Arc<Shared>,
    operation: &Operation<'_>,
    wait: &[Arc<dyn NativeEvent>],
) -> Result<Action> {
    if let Some(fault) = shared.enqueue_faults.take() {
        return Err(fault.command_error());
    }
    for event in wait {
        Event::of(event, shared)?;
    }
    // SAFETY: guaranteed by the caller.
    let action = unsafe { Action::capture(shared, operation) }?;
    count(match action {
        Action::Launch { .. } => &shared.counters.launches,
        _ => &shared.counters.other_commands,
    });
    Ok(action)
}
