//! Level Zero: devices that fail, and objects of other code.

#[cfg(feature = "level-zero")]
mod faulty;
mod objects;
