//! Sizes of values in memory, by the rules of OpenCL C (6.3.5).

use std::collections::{BTreeMap, HashMap};

use kiln_spirv::Module;
use kiln_spirv::edit::{Definitions, Section, View};
use rspirv::spirv::Decoration;

const MAX_DEPTH: usize = 32;
const MAX_SIZE: i128 = 1 << 64;
/// Maximum alignment of a value in memory, in bytes: the size of the largest OpenCL type.
pub(crate) const MAX_ALIGN: u32 = 128;

/// Sizes of a module's types, and offsets of the members of structs.
pub(crate) struct Layouts {
    layouts: BTreeMap<u32, Layout>,
    /// Size of pointers in bytes.
    pub address: i128,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub size: i128,
    pub align: i128,
    /// Parts that an index steps over or into.
    pub parts: Parts,
    /// Whether an access to a value touches all of its bytes. Padding need not be touched: the fourth
    /// component's bytes in a vector of three, and the bytes between or after the members of a struct.
    pub is_dense: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    None,
    /// Elements of an array or components of a vector: their type, and their stride in bytes.
    Equal(u32, i128),
    /// Members of a struct: the type and the offset in bytes of each.
    Members(Vec<(u32, i128)>),
}

impl Layouts {
    pub(crate) fn of(module: &Module, definitions: &Definitions<'_>) -> Self {
        // Kernels without such a size are refused where they are extracted.
        let address = module.address_bytes().unwrap_or(8).into();
        let annotations = module.section(Section::Annotations).iter();
        let packed = annotations.filter_map(|i| i.decoration(Decoration::CPacked));
        let packed: HashMap<u32, ()> = packed.map(|(id, _)| (id, ())).collect();
        let mut layouts = Self { layouts: BTreeMap::new(), address };
        for instruction in module.section(Section::Globals).iter() {
            if let Some(id) = instruction.result() {
                layouts.add(id, definitions, &packed, 0);
            }
        }
        layouts
    }

    pub(crate) fn get(&self, ty: u32) -> Option<&Layout> {
        self.layouts.get(&ty)
    }

    pub(crate) fn size(&self, ty: u32) -> Option<i128> {
        self.get(ty).map(|layout| layout.size)
    }

    fn add(
        &mut self,
        id: u32,
        definitions: &Definitions<'_>,
        packed: &HashMap<u32, ()>,
        depth: usize,
    ) -> Option<()> {
        if self.layouts.contains_key(&id) {
            return Some(());
        }
        if depth > MAX_DEPTH {
            return None;
        }
        let ty = definitions.get(id)?;
        let part = |layouts: &mut Self, id: u32| {
            layouts.add(id, definitions, packed, depth + 1)?;
            layouts.layouts.get(&id).cloned()
        };
        let scalar = |size| Layout { size, align: size, parts: Parts::None, is_dense: true };
        let layout = match ty.view() {
            View::TypeInt { width, .. } | View::TypeFloat { width, .. } => scalar(match width {
                8 | 16 | 32 | 64 => i128::from(width / 8),
                _ => return None,
            }),
            View::TypePointer { .. } => scalar(self.address),
            View::TypeVector { component, count } => {
                let Layout { size, is_dense, .. } = part(self, component)?;
                let room = i128::from(count.checked_next_power_of_two()?);
                let whole = size.checked_mul(room).filter(|&size| size < MAX_SIZE)?;
                let is_dense = is_dense && count.is_power_of_two();
                Layout { size: whole, align: whole, parts: Parts::Equal(component, size), is_dense }
            }
            View::TypeArray { element, length } => {
                let Layout { size: stride, align, is_dense, .. } = part(self, element)?;
                let length = i128::from(definitions.get(length)?.literal()?.number()?);
                let size = stride.checked_mul(length).filter(|&size| size < MAX_SIZE)?;
                Layout { size, align, parts: Parts::Equal(element, stride), is_dense }
            }
            View::TypeStruct { members: declared } => {
                let is_packed = packed.contains_key(&id);
                let (mut size, mut align, mut members) = (0_i128, 1, Vec::new());
                let mut is_dense = true;
                for member in declared.iter() {
                    let layout = part(self, member)?;
                    let step = if is_packed { 1 } else { layout.align.max(1) };
                    let start = round_up(size, step);
                    is_dense &= layout.is_dense && start == size;
                    members.push((member, start));
                    size = Some(start + layout.size).filter(|&size| size < MAX_SIZE)?;
                    align = align.max(step);
                }
                let end = size;
                size = round_up(end, align);
                is_dense &= size == end;
                Layout { size, align, parts: Parts::Members(members), is_dense }
            }
            _ => return None,
        };
        self.layouts.insert(id, layout);
        Some(())
    }
}

fn round_up(size: i128, step: i128) -> i128 {
    (size + step - 1) / step * step
}
