//! Objects that other code created with the driver: buffers, images and programs.
//!
//! Each is checked against the device's context, and retained, so that the other code may release its own
//! reference.

use std::ffi::c_void;
use std::ptr::NonNull;

use opencl3::context::context::retain_context;
use opencl3::memory::*;
use opencl3::program::{CL_PROGRAM_CONTEXT, cl_program, get_program_info, retain_program};
use opencl3::types::{cl_context, cl_int};

use super::codes::error;
use super::context::Context;
use super::handle::{OwnedContext, OwnedMemory, OwnedProgram};
use super::image_format::{known_format, type_of};
use super::integer;
use crate::device::{ImageKind, ImageShape};
use crate::error::{Error, Result};

/// Buffer of other code, or the buffer that it is a part of, with a reference of its own.
pub(super) struct GivenBuffer {
    pub(super) whole: OwnedMemory,
    /// Size of the whole in bytes.
    pub(super) bytes: usize,
    /// Given buffer, and its offset in the whole in bytes, if it is a sub-buffer.
    pub(super) part: Option<(OwnedMemory, usize)>,
}

/// Retains a buffer, or the buffer that it is a part of, and checks that it has at least `bytes` bytes in the context.
///
/// # Safety
///
/// `raw` is a memory object that is alive, if it is not null.
pub(super) unsafe fn buffer(context: &Context, raw: cl_mem, bytes: usize) -> Result<GivenBuffer> {
    // SAFETY: guaranteed by the caller.
    let memory = unsafe { retained_memory(context, raw)? };
    let kind = query(&memory, CL_MEM_TYPE)?;
    if kind != u64::from(CL_MEM_OBJECT_BUFFER) {
        return Err(Error::invalid(format!(
            "the given `cl_mem` is of the type {kind:#x}, not a buffer; \
             give an image to `Runtime::image_from_opencl`"
        )));
    }
    let size = query(&memory, CL_MEM_SIZE)?;
    if size < bytes as u64 {
        return Err(Error::invalid(format!(
            "the given `cl_mem` has {size} bytes; the elements need {bytes}"
        )));
    }
    let parent = query(&memory, CL_MEM_ASSOCIATED_MEMOBJECT)? as usize as cl_mem;
    if parent.is_null() {
        return Ok(GivenBuffer { whole: memory, bytes: size as usize, part: None });
    }
    let start = query(&memory, CL_MEM_OFFSET)? as usize;
    // SAFETY: the driver keeps the parent of a sub-buffer alive.
    let whole = unsafe { retained_memory(context, parent)? };
    let bytes = query(&whole, CL_MEM_SIZE)? as usize;
    Ok(GivenBuffer { whole, bytes, part: Some((memory, start)) })
}

/// Retains an image of the context. Returns it with its shape.
///
/// # Safety
///
/// `raw` is a memory object that is alive, if it is not null.
pub(super) unsafe fn image(context: &Context, raw: cl_mem) -> Result<(OwnedMemory, ImageShape)> {
    // SAFETY: guaranteed by the caller.
    let memory = unsafe { retained_memory(context, raw)? };
    let given = query(&memory, CL_MEM_TYPE)?;
    let kinds = [
        ImageKind::D1,
        ImageKind::D1Array,
        ImageKind::D1Buffer,
        ImageKind::D2,
        ImageKind::D2Array,
        ImageKind::D3,
    ];
    let kind = kinds.into_iter().find(|kind| u64::from(type_of(*kind)) == given);
    let kind = kind.filter(|kind| *kind != ImageKind::D1Buffer).ok_or_else(|| {
        Error::invalid(format!(
            "the given `cl_mem` is of the type {given:#x}, not an image with memory of its own; give a \
             buffer to `Runtime::buffer_from_opencl`"
        ))
    })?;
    let format = get_image_data(memory.raw(), CL_IMAGE_FORMAT).map_err(undescribed_error)?;
    let channels = format.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word));
    let format = match *channels.collect::<Vec<_>>() {
        [image_channel_order, image_channel_data_type, ..] => known_format(cl_image_format {
            image_channel_order,
            image_channel_data_type,
        })
        .ok_or_else(|| {
            Error::unsupported(format!(
                "the given image has the channel order {image_channel_order:#x} and the type \
                         {image_channel_data_type:#x}, for which there is no type of pixels"
            ))
        })?,
        _ => return Err(Error::invalid("the driver does not describe the given image's format")),
    };
    let size = |what| {
        let answer = get_image_data(memory.raw(), what).map_err(undescribed_error)?;
        Ok(integer(&answer).unwrap_or_default() as usize)
    };
    let (width, height, depth) =
        (size(CL_IMAGE_WIDTH)?, size(CL_IMAGE_HEIGHT)?, size(CL_IMAGE_DEPTH)?);
    let layers = size(CL_IMAGE_ARRAY_SIZE)?;
    let size = match kind {
        ImageKind::D1 | ImageKind::D1Buffer => [width, 1, 1],
        ImageKind::D1Array => [width, layers, 1],
        ImageKind::D2 => [width, height, 1],
        ImageKind::D2Array => [width, height, layers],
        ImageKind::D3 => [width, height, depth],
    };
    Ok((memory, ImageShape { kind, size, format }))
}

/// Retains a program of the context.
///
/// # Safety
///
/// `raw` is a program that is alive, if it is not null.
pub(super) unsafe fn program(context: &Context, raw: cl_program) -> Result<OwnedProgram> {
    let raw = not_null(raw, "cl_program")?;
    // SAFETY: the program is alive.
    unsafe { retain_program(raw) }.map_err(|code| not_alive_error(code, "cl_program"))?;
    // SAFETY: the reference was just taken for this value.
    let program = unsafe { OwnedProgram::new(raw) };
    let own = get_program_info(raw, CL_PROGRAM_CONTEXT)
        .map_err(|code| error(code, "the given program does not name its context"))?;
    check_context(context, isize::from(own), "cl_program")?;
    Ok(program)
}

/// Retains a context.
///
/// # Safety
///
/// The context is alive.
pub(super) unsafe fn retained_context(raw: cl_context) -> Result<OwnedContext> {
    // SAFETY: guaranteed by the caller.
    unsafe { retain_context(raw) }.map_err(|code| not_alive_error(code, "cl_context"))?;
    // SAFETY: the reference was just taken for this value.
    Ok(unsafe { OwnedContext::new(raw) })
}

/// Retains a memory object, and checks that it belongs to the context.
///
/// # Safety
///
/// `raw` is a memory object that is alive, if it is not null.
unsafe fn retained_memory(context: &Context, raw: cl_mem) -> Result<OwnedMemory> {
    let raw = not_null(raw, "cl_mem")?;
    // SAFETY: the memory object is alive.
    unsafe { retain_mem_object(raw) }.map_err(|code| not_alive_error(code, "cl_mem"))?;
    // SAFETY: the reference was just taken for this value.
    let memory = unsafe { OwnedMemory::new(raw) };
    check_context(context, query(&memory, CL_MEM_CONTEXT)? as isize, "cl_mem")?;
    Ok(memory)
}

/// Returns the answer to a query about a memory object: a number or an address.
fn query(memory: &OwnedMemory, what: cl_mem_info) -> Result<u64> {
    let answer = get_mem_object_data(memory.raw(), what).map_err(undescribed_error)?;
    integer(&answer).ok_or_else(|| {
        Error::invalid(format!("the driver's answer to query {what:#x} is no number"))
    })
}

fn undescribed_error(code: cl_int) -> Error {
    error(code, "the driver does not describe the given `cl_mem`")
}

fn check_context(context: &Context, given: isize, what: &str) -> Result<()> {
    if given == context.raw() as isize {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the given `{what}` belongs to another context than the runtime; create the runtime with \
         `Runtime::from_opencl`, or the object in `Runtime::driver_handles`"
    )))
}

pub(super) fn not_null(raw: *mut c_void, what: &str) -> Result<*mut c_void> {
    NonNull::new(raw).map(NonNull::as_ptr).ok_or_else(|| {
        Error::invalid(format!("the given `{what}` is null; give an object of the driver"))
    })
}

fn not_alive_error(code: cl_int, what: &str) -> Error {
    error(code, format!("the driver does not know the given `{what}`"))
}
