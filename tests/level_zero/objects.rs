//! Images and programs of Level Zero that other code created: Kiln uses them like its own, and leaves them to their
//! owner.

#![allow(clippy::print_stderr, reason = "the log shows the devices")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};

use futures::executor::block_on;
use kiln::images::{Bgra, ImageKind, R, Rgba, Sampler, Unorm};
use kiln::launch::Access;
use kiln::{Error, ErrorKind, Runtime};

type Raw = *mut c_void;

const SOURCE: &str = "
    kernel void brighten(read_only image2d_t from, write_only image2d_t to, sampler_t edge, uint by) {
        int2 at = (int2)(get_global_id(0), get_global_id(1));
        write_imageui(to, at, read_imageui(from, edge, at) + by);
    }
    kernel void add(global uint *x, uint by) { x[get_global_id(0)] += by; }";

/// Runs `test` on each device of Level Zero.
fn on_each_level_zero(test: impl AsyncFn(Runtime)) {
    block_on(support::on_each_device(async |rt| {
        if rt.device().backend == "level-zero" {
            test(rt).await;
        }
    }));
}

/// Returns a function of Level Zero's loader, which Kiln has loaded.
///
/// # Safety
///
/// The function has the type `F`.
unsafe fn function<F: Copy>(name: &[u8]) -> F {
    // SAFETY: the library's initialization has no conditions.
    let library = unsafe { libloading::Library::new("libze_loader.so.1") }.unwrap();
    // SAFETY: guaranteed by the caller.
    *unsafe { library.get::<F>(name) }.unwrap()
}

/// `ze_image_desc_t`.
#[repr(C)]
struct ImageDescription {
    stype: u32,
    next: *const c_void,
    flags: u32,
    kind: u32,
    /// Layout, type, and the channels that are read as red, green, blue and alpha.
    format: [u32; 6],
    width: u64,
    height: u32,
    depth: u32,
    layers: u32,
    levels: u32,
}

/// Creates an image of `width` by `height` pixels of one `u32`, as other code does.
fn create_image(rt: &Runtime, width: u64, height: u32) -> Raw {
    type Create = unsafe extern "C" fn(Raw, Raw, *const ImageDescription, *mut Raw) -> u32;
    // SAFETY: the function has this type.
    let create: Create = unsafe { function(b"zeImageCreate\0") };
    let description = ImageDescription {
        stype: 0x13,
        next: null(),
        flags: 1,
        kind: 2,
        format: [2, 0, 0, 4, 4, 5],
        width,
        height,
        depth: 1,
        layers: 0,
        levels: 0,
    };
    let (handles, mut image) = (rt.driver_handles().unwrap(), null_mut());
    // SAFETY: the runtime keeps context and device alive, and the description is valid.
    let code =
        unsafe { create(handles.context, handles.device, &raw const description, &raw mut image) };
    assert_eq!(code, 0, "the image is created");
    image
}

/// `ze_module_desc_t`.
#[repr(C)]
struct ModuleDescription {
    stype: u32,
    next: *const c_void,
    format: u32,
    bytes: usize,
    input: *const u8,
    options: *const c_char,
    constants: *const c_void,
}

/// Loads a binary as a module, as other code does.
fn create_module(rt: &Runtime, binary: &[u8]) -> Raw {
    type Create =
        unsafe extern "C" fn(Raw, Raw, *const ModuleDescription, *mut Raw, *mut Raw) -> u32;
    // SAFETY: the function has this type.
    let create: Create = unsafe { function(b"zeModuleCreate\0") };
    let description = ModuleDescription {
        stype: 0x1b,
        next: null(),
        format: 1,
        bytes: binary.len(),
        input: binary.as_ptr(),
        options: c"".as_ptr(),
        constants: null(),
    };
    let (handles, mut module) = (rt.driver_handles().unwrap(), null_mut());
    // SAFETY: the runtime keeps context and device alive, and the description is valid.
    let code = unsafe {
        create(handles.context, handles.device, &raw const description, &raw mut module, null_mut())
    };
    assert_eq!(code, 0, "the binary is loaded");
    module
}

/// Destroys an object with one of the loader's functions.
fn destroy(name: &[u8], object: Raw) {
    // SAFETY: functions that destroy an object have this type.
    let destroy: unsafe extern "C" fn(Raw) -> u32 = unsafe { function(name) };
    // SAFETY: the object is alive, and is not used again.
    assert_eq!(unsafe { destroy(object) }, 0, "the object is still there");
}

#[test]
fn given_images_are_used_like_others_and_left_to_their_owner() {
    on_each_level_zero(async |rt| {
        let queue = rt.queue();
        let object = create_image(&rt, 5, 3);
        // SAFETY: the image has this form, and is destroyed after its last use.
        let given = unsafe { rt.image_from_level_zero::<R<u32>>(object, ImageKind::D2, &[5, 3]) };
        let given = given.unwrap();
        assert_eq!((given.kind(), given.size()), (ImageKind::D2, &[5, 3][..]));
        assert_eq!(given.driver_handle().unwrap().object, object);
        queue.write(&given, (0..15).map(|i| R([i])).collect::<Vec<_>>()).unwrap();
        queue.fill(&given.part([1, 1], [2, 2]).unwrap(), R([100])).unwrap();

        let brighten = support::kernel(&rt, SOURCE, "brighten").await;
        let own = rt.image_2d::<R<u32>>(5, 3).unwrap();
        queue.submit(brighten.launch([5, 3]).args((&given, &own, Sampler::new(), 1u32))).unwrap();
        let expected = [1, 2, 3, 4, 5, 6, 101, 101, 9, 10, 11, 101, 101, 14, 15];
        assert_eq!(queue.read(&own).await.unwrap(), expected.map(|i| R([i])));
        queue.submit(brighten.launch([5, 3]).args((&own, &given, Sampler::new(), 1u32))).unwrap();
        assert_eq!(queue.read(&given).await.unwrap(), expected.map(|i| R([i + 1])));
        drop(given);
        rt.drain().await;
        destroy(b"zeImageDestroy\0", object);
    });
}

#[test]
fn given_programs_launch_their_kernels_and_are_left_to_their_owner() {
    on_each_level_zero(async |rt| {
        let queue = rt.queue();
        let binary = support::program(&rt, SOURCE).await.binary().unwrap();
        let object = create_module(&rt, &binary);
        // SAFETY: the module is alive, and is destroyed after its last use.
        let program = unsafe { rt.program_from_level_zero(object) }.unwrap();
        assert_eq!(program.origin(), kiln::build::Origin::Given);
        // SAFETY: the kernels stay inside their images and buffers.
        let [brighten, add] =
            ["brighten", "add"].map(|name| unsafe { program.kernel(name) }.unwrap());
        let x = rt.buffer_from(vec![5u32; 64]).await.unwrap();
        queue.submit(add.launch(64).args((&x, 2u32))).unwrap();
        assert_eq!(queue.read(&x).await.unwrap(), [7; 64]);

        let [from, to] = [(); 2].map(|()| rt.image_2d::<R<u32>>(4, 4).unwrap());
        queue.submit(brighten.launch([4, 4]).args((&from, &to, Sampler::new(), 9u32))).unwrap();
        assert_eq!(queue.read(&to).await.unwrap(), [R([9]); 16]);

        // The binary describes the parameters.
        let access = |at: usize| brighten.params().unwrap()[at].access;
        assert_eq!((access(0), access(1)), (Some(Access::Read), Some(Access::ReadWrite)));
        let volume = rt.image_3d::<R<u32>>(4, 4, 4).unwrap();
        let sampler = Sampler::new();
        for (launch, parameter) in [
            (brighten.launch(1).args((&x, &to, sampler, 1u32)), "parameter 0 `image2d_t from`"),
            (brighten.launch(1).args((&volume, &to, sampler, 1u32)), "parameter 0"),
            (brighten.launch(1).args((&from, 5u64, sampler, 1u32)), "parameter 1 `image2d_t to`"),
            (brighten.launch(1).args((&from, sampler, sampler, 1u32)), "parameter 1"),
            (brighten.launch(1).args((&from, &to, &to, 1u32)), "parameter 2 `sampler_t edge`"),
            (brighten.launch(1).args((&from, &to, 5u64, 1u32)), "parameter 2"),
            (brighten.launch(1).args((&from, &to, sampler, &to)), "parameter 3"),
            (add.launch(1).args((&from, 1u32)), "parameter 0"),
            (add.launch(1).args((&x, sampler)), "parameter 1"),
        ] {
            let error = match queue.submit(launch) {
                Ok(event) => event.await.unwrap_err(),
                Err(error) => error,
            };
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(parameter), "{error}");
        }
        queue.submit(add.launch(64).args((&x, 1u32))).unwrap();
        drop((program, brighten, add));
        assert_eq!(queue.read(&x).await.unwrap(), [8; 64]);
        rt.drain().await;
        destroy(b"zeModuleDestroy\0", object);
    });
}

#[test]
fn unusable_objects_are_refused_by_name() {
    let refused = |result: kiln::Result<()>, kind: ErrorKind, text: &str| {
        let error: Error = result.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    };
    on_each_level_zero(async |rt| {
        let object = create_image(&rt, 4, 4);
        let limit = rt.device().limits.images.d2[0];
        let size = [limit + 1, 1];
        for (object, kind, size, problem) in [
            (null_mut(), ImageKind::D2, &[4, 4][..], "`ze_image_handle_t` is null"),
            (object, ImageKind::D2, &[4], "needs 2 sizes"),
            (object, ImageKind::D3, &[4, 4], "needs 3 sizes"),
            (object, ImageKind::D2, &[4, 0], "at least 1"),
            (object, ImageKind::D2, &size, &limit.to_string()),
            (object, ImageKind::D1Buffer, &[4], "give the memory as a buffer"),
        ] {
            // SAFETY: the object is not used.
            let given = unsafe { rt.image_from_level_zero::<R<u32>>(object, kind, size) };
            refused(given.map(drop), ErrorKind::InvalidArgument, problem);
        }
        type Pixel = Bgra<Unorm<u8>>;
        // SAFETY: the object is not used.
        let given = unsafe { rt.image_from_level_zero::<Pixel>(object, ImageKind::D2, &[4, 4]) };
        refused(given.map(drop), ErrorKind::Unsupported, "Bgra<Unorm8>");
        // SAFETY: there is no object.
        let given = unsafe { rt.program_from_level_zero(null_mut()) };
        refused(given.map(drop), ErrorKind::InvalidArgument, "`ze_module_handle_t` is null");
        // SAFETY: the object is not used.
        let given = unsafe { rt.image_from_opencl::<Rgba<u8>>(object) };
        refused(given.map(drop), ErrorKind::Unsupported, "`opencl`");
        destroy(b"zeImageDestroy\0", object);
    });
    block_on(support::on_each_device(async |rt| {
        if rt.device().backend == "level-zero" {
            return;
        }
        // SAFETY: there is no object.
        let image = unsafe { rt.image_from_level_zero::<R<u8>>(null_mut(), ImageKind::D1, &[1]) };
        refused(image.map(drop), ErrorKind::Unsupported, "`level-zero`");
        // SAFETY: there is no object.
        let program = unsafe { rt.program_from_level_zero(null_mut()) };
        refused(program.map(drop), ErrorKind::Unsupported, "`level-zero`");
    }));
}
