//! A plug-in with device code, which an application loads and unloads while it runs.

kiln::device_library!("filters.spv");
kiln::export_device_libraries!();
