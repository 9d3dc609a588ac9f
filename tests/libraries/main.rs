//! Device libraries: code that is linked at run time.

mod device;
mod linked_modules;
mod signatures;
