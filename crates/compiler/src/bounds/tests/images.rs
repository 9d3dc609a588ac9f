//! Kernels with images that are written by hand: qualifiers, functions, and images that are not followed.

use kiln_spirv::Result;
use kiln_spirv::edit::{Section, View};
use rspirv::binary::Assemble as _;
use rspirv::dr::Builder;
use rspirv::spirv::{
    AccessQualifier, AddressingModel, Capability, Dim, ExecutionModel, FunctionControl,
    ImageFormat, MemoryAccess, MemoryModel, Op, StorageClass,
};

use super::super::hazards::Hazard;
use super::pixels::image;
use super::*;

/// Writer of a module with one kernel `k`.
pub(super) struct Code {
    pub(super) b: Builder,
    pub(super) void: u32,
    pub(super) int: u32,
    pub(super) float: u32,
    pub(super) pair: u32,
    pub(super) pixel: u32,
}

impl Code {
    pub(super) fn new() -> Self {
        let mut b = Builder::new();
        b.set_version(1, 2);
        for capability in [Capability::Addresses, Capability::Kernel, Capability::ImageBasic] {
            b.capability(capability);
        }
        b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
        let (void, int, float) = (b.type_void(), b.type_int(32, 0), b.type_float(32, None));
        let (pair, pixel) = (b.type_vector(int, 2), b.type_vector(float, 4));
        Self { b, void, int, float, pair, pixel }
    }

    /// Returns the type of a two-dimensional image.
    pub(super) fn picture(&mut self, access: AccessQualifier) -> u32 {
        self.image(Dim::Dim2D, 0, access)
    }

    pub(super) fn image(&mut self, dim: Dim, array: u32, access: AccessQualifier) -> u32 {
        self.b.type_image(self.void, dim, 0, array, 0, 0, ImageFormat::Unknown, Some(access))
    }

    /// Returns the constant coordinates (1, 2).
    pub(super) fn place(&mut self) -> u32 {
        let parts = [1, 2].map(|at| self.b.constant_bit32(self.int, at));
        self.b.constant_composite(self.pair, parts)
    }

    pub(super) fn black(&mut self) -> u32 {
        self.b.constant_null(self.pixel)
    }

    pub(super) fn read(&mut self, image: u32, at: u32) -> u32 {
        self.b.image_read(self.pixel, None, image, at, None, []).unwrap()
    }

    pub(super) fn write(&mut self, image: u32, at: u32, pixel: u32) {
        self.b.image_write(image, at, pixel, None, []).unwrap();
    }

    /// Begins a function. Returns its id and its parameters.
    pub(super) fn function(&mut self, result: u32, parameters: &[u32]) -> (u32, Vec<u32>) {
        let signature = self.b.type_function(result, parameters.iter().copied());
        let id = self.b.begin_function(result, None, FunctionControl::NONE, signature).unwrap();
        let own = parameters.iter().map(|&ty| self.b.function_parameter(ty).unwrap()).collect();
        self.b.begin_block(None).unwrap();
        (id, own)
    }

    pub(super) fn end(&mut self) {
        self.b.ret().unwrap();
        self.b.end_function().unwrap();
    }

    pub(super) fn call(&mut self, function: u32, arguments: &[u32]) {
        self.b.function_call(self.void, None, function, arguments.iter().copied()).unwrap();
    }

    /// Ends the kernel, and returns the module.
    pub(super) fn finish(mut self, kernel: u32) -> Module {
        self.end();
        self.b.entry_point(ExecutionModel::Kernel, kernel, "k", []);
        let words = self.b.module().assemble();
        Module::parse(bytemuck::cast_slice::<u32, u8>(&words)).unwrap()
    }
}

/// Returns the report on a launch in 16 x 16 work-items.
pub(super) fn outcome(module: &Module, arguments: &[Argument]) -> Result<(Kernel, Report)> {
    let kernel = Kernel::of(module, "k", &[], &BTreeSet::new())?;
    let range = NdRange::from(NdSize::from([16, 16]));
    let launch = Launch { range: &range, arguments, uniform_groups: true, few_constants: false };
    let report = check(&kernel, &launch)?;
    Ok((kernel, report))
}

pub(super) fn picture(size: usize) -> Argument {
    image("image2d_t", [size, size, 1], Channel::Float)
}

/// Returns why a kernel is refused that has these images of two dimensions as its parameters.
#[track_caller]
fn refusal(access: &[AccessQualifier], body: impl FnOnce(&mut Code, &[u32])) -> String {
    let mut code = Code::new();
    let types: Vec<_> = access.iter().map(|&access| code.picture(access)).collect();
    let (kernel, parameters) = code.function(code.void, &types);
    body(&mut code, &parameters);
    let module = code.finish(kernel);
    let arguments: Vec<_> = access.iter().map(|_| picture(16)).collect();
    let error = outcome(&module, &arguments).expect_err("the kernel is refused").to_string();
    assert!(error.contains("the launches of `k` cannot be checked"), "{error}");
    error
}

const ALL: [AccessQualifier; 3] =
    [AccessQualifier::ReadOnly, AccessQualifier::WriteOnly, AccessQualifier::ReadWrite];

#[test]
fn accesses_follow_the_qualifier_of_their_image() {
    for access in ALL {
        for writes in [false, true] {
            let mut code = Code::new();
            let ty = code.picture(access);
            let (kernel, parameters) = code.function(code.void, &[ty]);
            let (at, black) = (code.place(), code.black());
            match writes {
                true => code.write(parameters[0], at, black),
                false => _ = code.read(parameters[0], at),
            }
            let outcome = outcome(&code.finish(kernel), &[picture(16)]);
            let contradicts = match access {
                AccessQualifier::ReadOnly => writes,
                AccessQualifier::WriteOnly => !writes,
                AccessQualifier::ReadWrite => false,
            };
            match outcome {
                Ok((kernel, report)) => {
                    assert!(!contradicts, "{access:?} {writes}");
                    assert!(report.is_proven(), "{:?}", report.describe(&kernel));
                    assert_eq!(report.written().contains(&0), writes);
                }
                Err(error) => {
                    let expected = if writes { "`read_only`" } else { "`write_only`" };
                    let error = error.to_string();
                    assert!(contradicts && error.contains(expected), "{access:?}: {error}");
                }
            }
        }
    }
}

#[test]
fn images_that_are_read_and_written_are_proven_and_guarded() {
    for (size, is_proven) in [(3, true), (2, false)] {
        let mut code = Code::new();
        let ty = code.picture(AccessQualifier::ReadWrite);
        let (kernel, parameters) = code.function(code.void, &[ty]);
        let at = code.place();
        let pixel = code.read(parameters[0], at);
        code.write(parameters[0], at, pixel);
        let (kernel, report) = outcome(&code.finish(kernel), &[picture(size)]).unwrap();
        let text = report.describe(&kernel);
        assert_eq!(report.is_proven(), is_proven, "{text:?}");
        assert_eq!(
            report.accesses.iter().filter(|known| !known.is_in_bounds()).count(),
            2 * usize::from(!is_proven)
        );
        assert!(variant(&kernel, Some(&report), &[]).is_ok());
    }
}

/// Both a comparison and an address use the pixel, and must see the same value of it.
#[test]
fn numbers_from_images_that_are_written_are_read_once() {
    let mut code = Code::new();
    let ty = code.picture(AccessQualifier::ReadWrite);
    let (kernel, parameters) = code.function(code.void, &[ty]);
    let (at, four) = (code.place(), code.b.type_vector(code.int, 4));
    let numbers = code.b.image_read(four, None, parameters[0], at, None, []).unwrap();
    let there = code.b.vector_shuffle(code.pair, None, numbers, numbers, [0, 1]).unwrap();
    code.b.image_write(parameters[0], there, numbers, None, []).unwrap();
    let pictures = [image("image2d_t", [16, 16, 1], Channel::Signed)];
    let (kernel, report) = outcome(&code.finish(kernel), &pictures).unwrap();
    assert!(report.hazards.iter().any(|(_, hazard)| *hazard == Hazard::Shared), "{report:?}");
    let guarded = variant(&kernel, Some(&report), &[]).unwrap().module;
    let definitions = guarded.definitions();
    let used = definitions.get(numbers).unwrap();
    let View::Load { pointer, access } = used.view() else { panic!("{guarded:?}") };
    assert_eq!(access.mask(), Some(MemoryAccess::VOLATILE.bits()), "{guarded:?}");
    let variable = definitions.get(pointer).unwrap();
    assert_eq!(variable.op(), Some(Op::Variable));
}

/// Returns a kernel that passes its image to a function whose parameter is another one.
fn passes(given: AccessQualifier, other: impl FnOnce(&mut Code) -> u32, writes: bool) -> Module {
    let mut code = Code::new();
    let (own, other) = (code.picture(given), other(&mut code));
    let (at, black) = (code.place(), code.black());
    let (helper, parameters) = code.function(code.void, &[other]);
    match writes {
        true => code.write(parameters[0], at, black),
        false => _ = code.read(parameters[0], at),
    }
    code.end();
    let (kernel, parameters) = code.function(code.void, &[own]);
    code.call(helper, &parameters);
    code.finish(kernel)
}

#[test]
fn images_keep_their_qualifier_and_kind_in_functions() {
    let [read_only, write_only, read_write] = ALL;
    let (_, report) =
        outcome(&passes(read_only, |code| code.picture(read_only), false), &[picture(3)]).unwrap();
    assert!(report.is_proven(), "{report:?}");
    let modules = [
        passes(read_only, |code| code.picture(write_only), true),
        passes(read_only, |code| code.picture(read_write), true),
        passes(write_only, |code| code.picture(read_only), false),
        passes(write_only, |code| code.image(Dim::Dim1D, 1, write_only), true),
        passes(write_only, |code| code.image(Dim::DimBuffer, 0, write_only), true),
    ];
    for module in modules {
        let error = outcome(&module, &[picture(16)]).unwrap_err().to_string();
        assert!(error.contains("whose parameter has another type"), "{error}");
    }
}

#[test]
fn values_that_are_not_images_are_not_passed_as_images() {
    let mut code = Code::new();
    let ty = code.picture(AccessQualifier::WriteOnly);
    let (at, black) = (code.place(), code.black());
    let (helper, parameters) = code.function(code.void, &[ty]);
    code.write(parameters[0], at, black);
    code.end();
    let (kernel, parameters) = code.function(code.void, &[code.int]);
    code.call(helper, &parameters);
    let error = outcome(&code.finish(kernel), &[scalar(0_i32)]).unwrap_err().to_string();
    assert!(error.contains("whose parameter has another type"), "{error}");
}

#[test]
fn functions_are_proven_for_all_images_that_they_are_called_with() {
    let module = || {
        let mut code = Code::new();
        let ty = code.picture(AccessQualifier::WriteOnly);
        let (at, black) = (code.place(), code.black());
        let (helper, parameters) = code.function(code.void, &[ty]);
        code.write(parameters[0], at, black);
        code.end();
        let (kernel, parameters) = code.function(code.void, &[ty, ty]);
        code.call(helper, &parameters[..1]);
        code.call(helper, &parameters[1..]);
        code.finish(kernel)
    };
    for (sizes, is_proven) in [([3, 3], true), ([16, 2], false), ([2, 16], false)] {
        let (kernel, report) = outcome(&module(), &sizes.map(picture)).unwrap();
        assert_eq!(report.is_proven(), is_proven, "{:?}", report.describe(&kernel));
        assert_eq!(report.written(), BTreeSet::from([0, 1]));
    }
}

#[test]
fn images_that_are_chosen_are_refused_by_name() {
    let two = [AccessQualifier::ReadOnly; 2];
    let error = refusal(&two, |code, images| {
        let (ty, bool) = (code.picture(AccessQualifier::ReadOnly), code.b.type_bool());
        let holds = code.b.constant_true(bool);
        let chosen = code.b.select(ty, None, holds, images[0], images[1]).unwrap();
        let at = code.place();
        code.read(chosen, at);
    });
    assert!(error.contains("an image or a sampler in OpSelect"), "{error}");
    let error = refusal(&two, |code, images| {
        let (ty, bool) = (code.picture(AccessQualifier::ReadOnly), code.b.type_bool());
        let holds = code.b.constant_true(bool);
        let [yes, no, after] = [(); 3].map(|()| code.b.id());
        code.b.branch_conditional(holds, yes, no, []).unwrap();
        for label in [yes, no] {
            code.b.begin_block(Some(label)).unwrap();
            code.b.branch(after).unwrap();
        }
        code.b.begin_block(Some(after)).unwrap();
        let chosen = code.b.phi(ty, None, [(images[0], yes), (images[1], no)]).unwrap();
        let at = code.place();
        code.read(chosen, at);
    });
    assert!(error.contains("an image or a sampler in OpPhi"), "{error}");
    let error = refusal(&two, |code, images| {
        let ty = code.picture(AccessQualifier::ReadOnly);
        let copy = code.b.copy_object(ty, None, images[0]).unwrap();
        let at = code.place();
        code.read(copy, at);
    });
    assert!(error.contains("an image or a sampler in OpCopyObject"), "{error}");
}

/// Compilers that do not optimise keep parameters in variables.
#[test]
fn images_in_variables_are_followed() {
    for (size, is_proven) in [(3, true), (2, false)] {
        let mut code = Code::new();
        let ty = code.picture(AccessQualifier::ReadOnly);
        let (kernel, images) = code.function(code.void, &[ty]);
        let pointer = code.b.type_pointer(None, StorageClass::Function, ty);
        let variable = code.b.variable(pointer, None, StorageClass::Function, None);
        code.b.store(variable, images[0], None, []).unwrap();
        let loaded = code.b.load(ty, None, variable, None, []).unwrap();
        let at = code.place();
        code.read(loaded, at);
        let (kernel, report) = outcome(&code.finish(kernel), &[picture(size)]).unwrap();
        assert_eq!(report.is_proven(), is_proven, "{:?}", report.describe(&kernel));
        assert!(variant(&kernel, Some(&report), &[]).is_ok());
    }
}

#[test]
fn images_in_composites_are_refused_by_name() {
    let one = [AccessQualifier::ReadOnly];
    for is_array in [false, true] {
        let error = refusal(&one, |code, images| {
            let ty = code.picture(AccessQualifier::ReadOnly);
            let length = code.b.constant_bit32(code.int, 1);
            let whole = match is_array {
                true => code.b.type_array(ty, length),
                false => code.b.type_struct([ty]),
            };
            let all = code.b.composite_construct(whole, None, [images[0]]).unwrap();
            let part = code.b.composite_extract(ty, None, all, [0]).unwrap();
            let at = code.place();
            code.read(part, at);
        });
        assert!(error.contains("an image or a sampler in OpCompositeConstruct"), "{error}");
    }
}

#[test]
fn images_from_nowhere_are_refused_by_name() {
    for op in [Op::Undef, Op::ConstantNull] {
        let error = refusal(&[], |code, _| {
            let ty = code.picture(AccessQualifier::ReadOnly);
            let nothing = match op {
                Op::Undef => code.b.undef(ty, None),
                _ => code.b.constant_null(ty),
            };
            let at = code.place();
            code.read(nothing, at);
        });
        assert!(error.contains("that is not a parameter"), "{error}");
    }
}

/// Returns a kernel with a parameter that holds an image, which it takes from there.
fn holds(array: bool, is_pointer: bool) -> Module {
    let mut code = Code::new();
    let ty = code.picture(AccessQualifier::ReadOnly);
    let length = code.b.constant_bit32(code.int, 1);
    let whole = if array { code.b.type_array(ty, length) } else { code.b.type_struct([ty]) };
    let class = StorageClass::CrossWorkgroup;
    let parameter = if is_pointer { code.b.type_pointer(None, class, whole) } else { whole };
    let (kernel, parameters) = code.function(code.void, &[parameter]);
    let value = match is_pointer {
        true => code.b.load(whole, None, parameters[0], None, []).unwrap(),
        false => parameters[0],
    };
    let part = code.b.composite_extract(ty, None, value, [0]).unwrap();
    let at = code.place();
    code.read(part, at);
    code.finish(kernel)
}

#[test]
fn parameters_that_hold_images_are_refused_by_name() {
    for array in [false, true] {
        for (is_pointer, given) in [(false, scalar(0_u64)), (true, buffer(64))] {
            let module = holds(array, is_pointer);
            let error = outcome(&module, std::slice::from_ref(&given)).unwrap_err().to_string();
            assert!(error.contains("`k`") && error.contains("that is not a parameter"), "{error}");
        }
    }
}

#[test]
fn functions_that_return_images_are_refused_by_name() {
    let mut code = Code::new();
    let ty = code.picture(AccessQualifier::ReadOnly);
    let (helper, parameters) = code.function(ty, &[ty]);
    code.b.ret_value(parameters[0]).unwrap();
    code.b.end_function().unwrap();
    let (kernel, parameters) = code.function(code.void, &[ty]);
    let returned = code.b.function_call(ty, None, helper, [parameters[0]]).unwrap();
    let at = code.place();
    code.read(returned, at);
    let error = outcome(&code.finish(kernel), &[picture(16)]).unwrap_err().to_string();
    assert!(error.contains("an image or a sampler in OpReturnValue"), "{error}");
}

#[test]
fn pixels_of_other_types_are_refused_by_name() {
    let error = refusal(&[AccessQualifier::ReadOnly], |code, images| {
        let at = code.place();
        code.b.image_read(code.float, None, images[0], at, None, []).unwrap();
    });
    assert!(error.contains("OpImageRead has a pixel whose type is not followed"), "{error}");
    let error = refusal(&[AccessQualifier::WriteOnly], |code, images| {
        let (at, short) = (code.place(), code.b.type_int(16, 0));
        let ty = code.b.type_vector(short, 4);
        let black = code.b.constant_null(ty);
        code.write(images[0], at, black);
    });
    assert!(error.contains("OpImageWrite has a pixel whose type is not followed"), "{error}");
}

/// Compilers give coordinates of three components a fourth one, which stays undefined.
#[test]
fn coordinates_that_shuffles_leave_undefined_are_defined_in_the_variant() {
    let kernel = |last: [u32; 4]| {
        let mut code = Code::new();
        let ty = code.image(Dim::Dim3D, 0, AccessQualifier::WriteOnly);
        let (at, black) = (code.place(), code.black());
        let (kernel, parameters) = code.function(code.void, &[ty]);
        let four = code.b.type_vector(code.int, 4);
        let at = code.b.vector_shuffle(four, None, at, at, last).unwrap();
        code.write(parameters[0], at, black);
        code.finish(kernel)
    };
    let space = [image("image3d_t", [3, 3, 3], Channel::Float)];
    let (_, report) = outcome(&kernel([0, 1, 1, u32::MAX]), &space).unwrap();
    assert!(report.is_proven(), "{report:?}");
    let (kernel, report) = outcome(&kernel([0, 1, u32::MAX, 1]), &space).unwrap();
    assert!(report.hazards.iter().any(|(_, hazard)| *hazard == Hazard::Undefined), "{report:?}");
    let guarded = variant(&kernel, Some(&report), &[]).unwrap().module;
    let bodies = guarded.functions.iter().flat_map(|function| function.body.iter());
    let mut shuffles = bodies.filter(|i| i.op() == Some(Op::VectorShuffle));
    assert!(!shuffles.any(|i| i.words_from(4).any(|at| at == u32::MAX)));
}

#[test]
fn vectors_that_are_built_up_from_themselves_are_followed_to_an_end() {
    for is_shuffle in [false, true] {
        let mut code = Code::new();
        let ty = code.picture(AccessQualifier::WriteOnly);
        let (at, black) = (code.place(), code.black());
        let (kernel, parameters) = code.function(code.void, &[ty]);
        let (one, own) = (code.b.constant_bit32(code.int, 1), code.b.id());
        let at = match is_shuffle {
            true => code.b.vector_shuffle(code.pair, Some(own), own, at, [1, 0]).unwrap(),
            false => code.b.composite_insert(code.pair, Some(own), one, own, [0]).unwrap(),
        };
        code.b.composite_extract(code.int, None, at, [1]).unwrap();
        code.write(parameters[0], at, black);
        let outcome = outcome(&code.finish(kernel), &[picture(16)]);
        assert!(outcome.is_err() || outcome.is_ok_and(|(_, report)| !report.is_proven()));
    }
}

#[test]
fn sizes_that_do_not_fit_their_type_are_not_known() {
    let outcome_for = |width: u32| {
        let mut code = Code::new();
        code.b.capability(Capability::Int8);
        let ty = code.image(Dim::Dim1D, 0, AccessQualifier::WriteOnly);
        let black = code.black();
        let (kernel, parameters) = code.function(code.void, &[ty]);
        let narrow = code.b.type_int(width, 0);
        let zero = code.b.constant_bit32(code.int, 0);
        let size = code.b.image_query_size_lod(narrow, None, parameters[0], zero).unwrap();
        let size = if width == 32 { size } else { code.b.u_convert(code.int, None, size).unwrap() };
        let one = code.b.constant_bit32(code.int, 1);
        let last = code.b.i_sub(code.int, None, size, one).unwrap();
        code.write(parameters[0], last, black);
        let line = [image("image1d_t", [256, 1, 1], Channel::Float)];
        outcome(&code.finish(kernel), &line).unwrap().1
    };
    assert!(outcome_for(32).is_proven());
    // 256 as a number of eight bits is 0, and the last coordinate is -1.
    assert!(!outcome_for(8).is_proven());
}

#[test]
fn names_of_combined_images_are_not_left_in_the_variant() {
    let mut code = Code::new();
    let ty = code.picture(AccessQualifier::ReadOnly);
    let sampler = code.b.type_sampler();
    let combined_type = code.b.type_sampled_image(ty);
    let at = code.place();
    let (kernel, parameters) = code.function(code.void, &[ty, sampler]);
    let combined = code.b.sampled_image(combined_type, None, parameters[0], parameters[1]).unwrap();
    code.b.name(combined, "combined");
    let (lod, zero) = (rspirv::spirv::ImageOperands::LOD, code.b.constant_bit32(code.float, 0));
    let operands = [rspirv::dr::Operand::IdRef(zero)];
    code.b.image_sample_explicit_lod(code.pixel, None, combined, at, lod, operands).unwrap();
    let sampler = Argument::Sampler(Sampler::new());
    let (kernel, report) = outcome(&code.finish(kernel), &[picture(2), sampler]).unwrap();
    assert!(!report.is_proven());
    let guarded = variant(&kernel, Some(&report), &[]).unwrap().module;
    let mut names = guarded.section(Section::Names).iter();
    assert!(!names.any(|i| i.named().is_some_and(|(_, name)| name == "combined")));
}
