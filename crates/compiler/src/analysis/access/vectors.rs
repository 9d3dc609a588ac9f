//! Vectors of integers, whose components are known one by one.

use kiln_spirv::edit::{Instruction, View};

use super::eval::{Evaluation, Frame, MAX_PARTS};
use super::facts::Known;

/// Function that returns the value of an operand, by its id.
type See<'a> = dyn Fn(u32) -> Known + 'a;

impl<'m> Evaluation<'m> {
    /// Returns a component of a vector.
    pub(super) fn part(&self, frame: &Frame<'_>, i: &Instruction<'_>) -> Option<Known> {
        let (View::Extract { whole: vector, .. } | View::ExtractDynamic { vector, .. }) = i.view()
        else {
            return None;
        };
        let Known::Parts(parts) = self.value(frame, vector) else { return None };
        let at = match i.view() {
            View::Extract { path, .. } => i128::from(path.single()?),
            View::ExtractDynamic { index, .. } => {
                self.index(index, &|id| self.value(frame, id))?.value()?
            }
            _ => return None,
        };
        parts.get(usize::try_from(at).ok()?).cloned()
    }

    /// Returns the type of a vector's components, and their number; `None` for other types.
    pub(super) fn parts_of(&self, ty: u32) -> Option<(u32, usize)> {
        let (component, count) = self.definitions.get(ty)?.vector()?;
        let count = usize::try_from(count).ok().filter(|&count| count <= MAX_PARTS)?;
        Some((component, count))
    }

    /// Returns the width of an integer type, or of the components of a vector, in bits.
    pub(super) fn part_width(&self, ty: u32) -> Option<u32> {
        self.width(self.parts_of(ty).map_or(ty, |(part, _)| part))
    }

    pub(super) fn part_width_of(&self, id: u32) -> Option<u32> {
        self.part_width(self.definitions.get(id)?.result_type()?)
    }

    /// Returns the components of a value that is a vector of integers.
    fn parts(&self, id: u32, see: &impl Fn(u32) -> Known) -> Option<Vec<Known>> {
        if let Known::Parts(parts) = see(id) {
            return Some(parts);
        }
        let ty = self.definitions.get(id)?.result_type()?;
        let (part, count) = self.parts_of(ty)?;
        self.width(part)?;
        Some(vec![self.unknown(part); count])
    }

    /// Evaluates an operation on vectors, component by component. `operate` returns the result of the operation
    /// for the operands that the function passed to it returns.
    pub(super) fn by_parts(
        &self,
        i: &Instruction<'_>,
        see: &See<'_>,
        operate: &dyn Fn(&See<'_>) -> Option<Known>,
    ) -> Option<Known> {
        let (part, count) = self.parts_of(i.result_type()?)?;
        self.width(part)?;
        let parts = (0..count).map(|at| {
            let see = |id| match self.parts(id, &see) {
                Some(parts) => parts.get(at).cloned().unwrap_or(Known::Other),
                None => see(id),
            };
            operate(&see).unwrap_or_else(|| self.unknown(part))
        });
        Some(Known::Parts(parts.collect()))
    }

    /// Returns a vector with one component replaced.
    pub(super) fn inserted(
        &self,
        i: &Instruction<'_>,
        see: &impl Fn(u32) -> Known,
    ) -> Option<Known> {
        let (part, _) = self.parts_of(i.result_type()?)?;
        let View::Insert { part: inserted, whole, path } = i.view() else { return None };
        let mut parts = self.parts(whole, see)?;
        let own = see(inserted);
        let at = usize::try_from(path.single()?).ok()?;
        *parts.get_mut(at)? = match own {
            Known::Integer(_) => own,
            _ => self.unknown(part),
        };
        Some(Known::Parts(parts))
    }

    /// Returns a vector of components of two others.
    pub(super) fn shuffled(
        &self,
        i: &Instruction<'_>,
        see: &impl Fn(u32) -> Known,
    ) -> Option<Known> {
        let (part, count) = self.parts_of(i.result_type()?)?;
        let View::Shuffle { first, second, lanes } = i.view() else { return None };
        let mut all = self.parts(first, see)?;
        all.extend(self.parts(second, see)?);
        let parts = lanes.iter().take(count).map(|at| {
            let at = usize::try_from(at).ok();
            at.and_then(|at| all.get(at)).cloned().unwrap_or_else(|| self.unknown(part))
        });
        Some(Known::Parts(parts.collect()))
    }
}
