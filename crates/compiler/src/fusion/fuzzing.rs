//! Fuzz target of fusion, for the fuzzer in `fuzz/`, which is built with `--cfg fuzzing`.
#![allow(missing_docs, clippy::missing_panics_doc, reason = "not part of the interface")]

use std::collections::{BTreeMap, BTreeSet};

use kiln_spirv::Module;
use kiln_spirv::edit::Section;
use rspirv::spirv::{Op, StorageClass};

use super::{
    Argument, Examinations, FusionForm, Image, Internalization, Memory, Place, Plan, Programs,
    Region, Slot, Target, Trust, Width, fuse,
};
use crate::analysis::access;
use crate::{ChannelOrder, ChannelType, ImageFormat, ImageKind, ImageShape, Sampler};
use crate::{NdRange, NdSize};

/// Sizes to choose from: small ones in the first half; zero, larger and extreme ones in the second.
pub(crate) const SIZES: [usize; 14] =
    [1, 2, 3, 4, 8, 16, 64, 100, 0, 1 << 20, 1 << 31, 1 << 31 << 2, usize::MAX / 2, usize::MAX];

/// Fuses launches of the modules' kernels, at most six, until the choices run out. Fusion must not panic for
/// any bytes, and its result must be a valid module.
pub fn exercise(modules: &[&[u8]], choices: &[u8]) {
    let modules: Vec<_> = modules.iter().filter_map(|bytes| Module::parse(*bytes).ok()).collect();
    if modules.is_empty() {
        return;
    }
    let mut choices = Choices(choices);
    let mut slots = Vec::new();
    while !choices.0.is_empty() && slots.len() < 6 {
        slots.extend(choices.slot(&modules));
    }
    let version = (1, choices.below(7) as u8);
    let mut plan = Plan {
        modules: vec![[0; 32]; modules.len()],
        slots,
        constants: BTreeSet::new(),
        dead: (0..4).filter(|_| choices.below(2) == 0).map(Memory).collect(),
        forms: BTreeMap::new(),
        target: Target {
            version,
            local_memory: [0, 256, 1 << 15, usize::MAX][choices.below(4)],
            separate_functions: choices.below(2) == 1,
            order_own_accesses: choices.below(2) == 1,
            widen_vectors: choices.below(2) == 1,
        },
    };
    for form in [Internalization::Private, Internalization::Local] {
        if choices.below(8) == 0 {
            plan.forms.insert(Memory(choices.below(4) as u32), form);
        }
    }
    plan.constants = plan.places().map(|(place, _)| place).collect();
    plan.constants.retain(|_| choices.below(4) == 0);
    plan.constants.extend((choices.below(16) == 0).then_some(Place { slot: 9, argument: 9 }));
    let modules: Vec<_> = modules.iter().collect();
    let programs = Programs { modules: &modules, examinations: &Examinations::default() };
    for trust in [Trust::ProofOnly, Trust::Caller] {
        let Ok(outcome) = fuse(&plan, programs, trust, Width::ONE, FusionForm::Direct) else {
            continue;
        };
        if let Ok(fused) = outcome.fused {
            let bytes = fused.module.assemble();
            let again = Module::parse(&*bytes).expect("a fused module is valid");
            assert_eq!(again.assemble(), bytes);
            assert!(fused.module.header.version <= version.max((1, 0)));
        }
    }
}

/// Source of numbers from bytes; returns zeros when the bytes run out.
pub(crate) struct Choices<'a>(pub(crate) &'a [u8]);

impl Choices<'_> {
    /// Returns a number below `count`, or 0 if there is none.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(first) % count.max(1)
    }

    fn slot(&mut self, modules: &[Module]) -> Option<Slot> {
        let module = self.below(modules.len());
        let entries = modules[module].section(Section::EntryPoints);
        let names: Vec<_> =
            entries.iter().filter_map(|entry| Some(entry.entry_point()?.1)).collect();
        let kernel = (*names.get(self.below(names.len()))?).to_owned();
        let arguments = self.arguments(&modules[module], &kernel);
        let constants = (self.below(8) == 0)
            .then(|| (self.below(9) as u32, vec![self.below(256) as u8; self.below(9)]));
        let constants = constants.into_iter().collect();
        Some(Slot { module, kernel, range: self.range(), arguments, constants })
    }

    /// Returns a size of one to three dimensions, of the first `most` sizes.
    pub(crate) fn size(&mut self, dimensions: usize, most: usize) -> NdSize {
        let [x, y, z] = std::array::from_fn(|_| SIZES[self.below(most)]);
        match dimensions {
            0 => NdSize::from(x),
            1 => [x, y].into(),
            _ => [x, y, z].into(),
        }
    }

    fn range(&mut self) -> NdRange {
        let mut sizes = |most: usize| {
            let dimensions = self.below(3);
            self.size(dimensions, most)
        };
        let is_sane = SIZES.len() / 2;
        let (global, local, offset) = (sizes(SIZES.len()), sizes(is_sane), sizes(SIZES.len()));
        let mut range = NdRange::from(global);
        if self.below(3) == 0 {
            _ = range.set_local(local);
        }
        if self.below(4) == 0 {
            _ = range.set_offset(offset);
        }
        range
    }

    /// Returns an image of any kind and size.
    fn picture(&mut self) -> Argument {
        use {ChannelOrder as Order, ChannelType as Type, ImageKind as Kind};
        let kinds = [Kind::D2, Kind::D1, Kind::D3, Kind::D1Array, Kind::D2Array, Kind::D1Buffer];
        let orders = [Order::Rgba, Order::R, Order::Rg, Order::A];
        let channels = [Type::Float, Type::Uint32, Type::Int32, Type::Unorm8];
        let format = ImageFormat {
            order: orders[self.below(orders.len())],
            channel: channels[self.below(channels.len())],
        };
        let size = [(); 3].map(|()| SIZES[self.below(SIZES.len())]);
        let shape = ImageShape { kind: kinds[self.below(kinds.len())], size, format };
        let memory = Memory(self.below(4) as u32);
        let region = Region { memory, offset: 0, length: shape.bytes().unwrap_or(usize::MAX) };
        Argument::Image(Image { region, shape })
    }

    /// Returns arguments for a kernel, most of which fit its parameters.
    fn arguments(&mut self, module: &Module, kernel: &str) -> Vec<Argument> {
        let definitions = module.definitions();
        let function = access::function_of(module, kernel).map_or(0, |(_, function)| function);
        let function = module.functions.iter().find(|known| known.id == function);
        let body = function.into_iter().flat_map(|function| function.body.iter());
        let parameters = body.filter(|i| i.op() == Some(Op::FunctionParameter)).take(32);
        let mut arguments = Vec::new();
        for parameter in parameters {
            let ty = parameter.result_type().and_then(|ty| definitions.get(ty));
            let class = ty.filter(|ty| ty.op() == Some(Op::TypePointer));
            let class = class.and_then(|ty| ty.storage_class());
            let width = ty.and_then(|ty| ty.width()).unwrap_or(0) as usize / 8;
            let buffer = |choices: &mut Self| {
                let memory = Memory(choices.below(4) as u32);
                let offset = [0, 0, 0, 4, 64, usize::MAX][choices.below(6)];
                let length = [4096, 4096, 64, 0, usize::MAX][choices.below(5)];
                Argument::Buffer(Region { memory, offset, length })
            };
            let object = ty.and_then(|ty| ty.op());
            if object == Some(Op::TypeImage) && self.below(40) != 0 {
                arguments.push(self.picture());
                continue;
            }
            if object == Some(Op::TypeSampler) {
                let sampler = Sampler::new().normalized(self.below(4) == 0);
                arguments.push(Argument::Sampler(sampler));
                continue;
            }
            arguments.push(match class.and_then(StorageClass::from_u32) {
                _ if self.below(40) == 0 => buffer(self),
                Some(StorageClass::Workgroup) => Argument::Local(SIZES[self.below(SIZES.len())]),
                Some(StorageClass::Function) | None => {
                    let first = self.below(256) as u8;
                    let size = if self.below(40) == 0 { self.below(70) } else { width.min(64) };
                    let mut bytes = vec![if self.below(3) == 0 { 255 } else { 0 }; size];
                    bytes.iter_mut().take(1).for_each(|byte| *byte = first);
                    Argument::Scalar(bytes)
                }
                Some(_) => buffer(self),
            });
        }
        arguments
    }
}
