//! Compilers in processes of their own: untrusted modules, compile processes, and text that overflows stacks.

mod compile;
mod deep_text;
mod untrusted;
