//! Values that every replay of a graph sets.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;

use crate::args::{Argument, ArgumentValue, OpenId, Seal};

/// Value of a kernel's parameter that each replay of a graph sets: from [`Recorder::scalar`](crate::Recorder::scalar). A reference to it is
/// an argument of recorded launches, as a value of type `T`.
///
/// # Examples
///
/// ```no_run
/// # async fn example(queue: kiln::Queue, scale: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let mut recorder = queue.record();
/// let factor = recorder.scalar::<f32>();
/// recorder.submit(scale.launch(x.len()).args((&factor, &x)))?;
/// let graph = recorder.finish().await?;
/// graph.replay().set(&factor, 0.5).submit()?;
/// # Ok(())
/// # }
/// ```
pub struct GraphScalar<T> {
    pub(super) id: OpenId,
    value: PhantomData<fn() -> T>,
}

impl<T> GraphScalar<T> {
    pub(super) fn new(id: OpenId) -> Self {
        Self { id, value: PhantomData }
    }
}

impl<T> Clone for GraphScalar<T> {
    fn clone(&self) -> Self {
        Self::new(self.id)
    }
}

impl<T> fmt::Debug for GraphScalar<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "value {} (`{}`) of a graph", self.id.index, type_name::<T>())
    }
}

impl<T: Pod> Argument for &GraphScalar<T> {
    fn into_value(self, _: Seal) -> ArgumentValue {
        ArgumentValue::open::<T>(self.id)
    }
}
