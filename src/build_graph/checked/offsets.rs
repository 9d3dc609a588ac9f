//! Variants for unchecked launches with slices that the device does not take as arguments: the kernel adds the
//! offsets itself.

use std::sync::Arc;

use super::analysis::Analysis;
use super::checks::Checks;
use super::variant::Variant;
use crate::error::Result;
use crate::executor::Priority;
use crate::sync::lock;

/// Maximum number of variants that a kernel keeps.
const MAX_KNOWN: usize = 8;

impl Checks {
    /// Returns the variant of the kernel that takes offsets for the arguments at these positions. Its build may not
    /// have ended. Returns `None` while the kernel is being analysed, or if that must not be done on the caller's
    /// thread.
    ///
    /// # Errors
    ///
    /// The errors of the analysis, and [`Unsupported`](crate::ErrorKind::Unsupported) for a kernel that has no such
    /// variant.
    pub(crate) fn with_offsets(&self, positions: &[usize]) -> Option<Result<Arc<Variant>>> {
        if let Some(known) = self.known_with_offsets(positions) {
            return Some(Ok(known));
        }
        match self.peek()? {
            Ok(analysis) if analysis.plan.has_untrusted() => None,
            Ok(analysis) => Some(self.new_with_offsets(&analysis, positions)),
            Err(error) => Some(Err(error)),
        }
    }

    /// Like [`with_offsets`](Self::with_offsets), on a thread of the pool, and waits until the variant is built.
    ///
    /// # Errors
    ///
    /// As for [`with_offsets`](Self::with_offsets).
    pub(crate) async fn built_with_offsets(
        self: &Arc<Self>,
        positions: Box<[usize]>,
    ) -> Result<Arc<Variant>> {
        let analysis = self.analysis().await?;
        let (checks, is_untrusted) = (Arc::clone(self), analysis.plan.has_untrusted());
        let request = move || match checks.known_with_offsets(&positions) {
            Some(known) => Ok(known),
            None => checks.new_with_offsets(&analysis, &positions),
        };
        let graph = self.graph()?;
        let pool = graph.pool_for(is_untrusted).threads();
        let variant: Result<Arc<Variant>> = pool.run(Priority::Short, request).await?;
        let variant = variant?;
        variant.kernel.resolve().await;
        Ok(variant)
    }

    fn known_with_offsets(&self, positions: &[usize]) -> Option<Arc<Variant>> {
        let known = lock(&self.with_offsets);
        let has_positions =
            |variant: &&Arc<Variant>| variant.offsets.iter().map(|offset| &offset.at).eq(positions);
        known.iter().find(has_positions).filter(|variant| !variant.may_be_tried_again()).cloned()
    }

    fn new_with_offsets(&self, analysis: &Analysis, positions: &[usize]) -> Result<Arc<Variant>> {
        let variant = self.graph()?.variant(analysis, None, positions)?;
        let mut known = lock(&self.with_offsets);
        known.truncate(MAX_KNOWN - 1);
        known.insert(0, Arc::clone(&variant));
        Ok(variant)
    }
}
