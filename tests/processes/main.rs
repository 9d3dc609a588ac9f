//! Processes: compilers in processes of their own, signals, exhausted resources, and the end of the process.

#[cfg(feature = "cli")]
mod broken;
#[cfg(feature = "cli")]
mod compile;
#[cfg(feature = "cli")]
mod deep_text;
mod end;
#[cfg(feature = "cli")]
mod exhausted;
#[cfg(feature = "cli")]
mod loads;
mod out_of_memory;
mod signals;
#[cfg(feature = "cli")]
mod untrusted;
