//! A library as an OpenCL driver's own linker makes it, without Kiln.

use std::ffi::CStr;
use std::ptr;

use cl3::context::create_context;
use cl3::device::{CL_DEVICE_NAME, CL_DEVICE_TYPE_ALL, get_device_ids, get_device_info};
use cl3::platform::get_platform_ids;
use cl3::program::{
    CL_PROGRAM_BINARIES, compile_program, create_program_with_source, get_program_info,
    link_program,
};
use cl3::types::cl_device_id;

/// Option that makes the linker create a library instead of a program.
const CREATE_LIBRARY: &CStr = c"-create-library";

/// Returns the binary of the type `CL_PROGRAM_BINARY_TYPE_LIBRARY` of a text, for the device with a name. The
/// driver's objects are not released.
pub(crate) fn binary(device_name: &str, text: &str) -> Vec<u8> {
    let device = find(device_name);
    let context = create_context(&[device], ptr::null(), None, ptr::null_mut()).expect("it opens");
    let object = create_program_with_source(context, &[text]).expect("it is text");
    compile_program(object, &[device], c"", &[], &[], None, ptr::null_mut()).expect("it compiles");
    let objects = [object];
    // SAFETY: context, device and object are alive, and there is no callback.
    let library = unsafe {
        link_program(context, &[device], CREATE_LIBRARY, &objects, None, ptr::null_mut())
    };
    let binaries = get_program_info(library.expect("it links"), CL_PROGRAM_BINARIES);
    let binaries = Vec::<Vec<u8>>::from(binaries.expect("there is a binary"));
    binaries.into_iter().next().expect("one device has one binary")
}

fn find(name: &str) -> cl_device_id {
    let platforms = get_platform_ids().expect("there are platforms");
    let devices = platforms
        .into_iter()
        .flat_map(|platform| get_device_ids(platform, CL_DEVICE_TYPE_ALL).unwrap_or_default());
    let has_name = |&device: &cl_device_id| {
        let found = get_device_info(device as _, CL_DEVICE_NAME).expect("devices have names");
        String::from(found).trim_end_matches('\0').trim() == name.trim()
    };
    devices.into_iter().find(has_name).expect("the device is there")
}
