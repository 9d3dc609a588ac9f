//! Level Zero: devices that fail, and objects of other code.

mod faulty;
mod objects;
