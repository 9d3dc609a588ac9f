//! Objects: modules that are compiled for a device and not linked.

use std::fmt;
use std::sync::Arc;

use super::built::Origin;
use super::entry_codec;
use super::graph::BuildGraph;
use super::link::{LinkTarget, describe};
use super::outcome::Answer;
use super::plan::BuildPlan;
use super::spec::BuildSpec;
use super::strategy::BuildStrategy;
use crate::device::{Device, ModuleFormat};
use crate::digest::BuildKey;
use crate::error::{Error, Result};
use crate::executor::Priority;
use crate::future::named_future;

/// A module compiled for a device and not linked, from [`BuildRequest::object`](crate::BuildRequest::object): a
/// handle, cheap to clone.
///
/// [`Module::native`](crate::Module::native) takes its [bytes](Self::bytes), in this process or later in
/// another one, as a device library or as the module of a program that imports from libraries.
///
/// # Examples
///
/// ```no_run
/// # async fn example(rt: kiln::Runtime, tone: kiln::Module) -> Result<(), Box<dyn std::error::Error>> {
/// let object = rt.build(&tone).object().await?;
/// println!("{:.8} for {}", object.key(), object.device());
/// std::fs::write("tone.o", object.bytes())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Object {
    file: Arc<[u8]>,
    key: BuildKey,
    device: Device,
    origin: Origin,
    build_log: Arc<str>,
}

impl Object {
    /// Returns the content of the object's file: the driver's binary, then a description with the device, the
    /// driver and the symbols. The driver's own tools read it like the binary alone.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(object: kiln::libraries::Object) -> kiln::Result<()> {
    /// let library = kiln::Module::native(object.bytes())?;
    /// println!("exports {:?}", library.exports().collect::<Vec<_>>());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.file
    }

    /// Returns the key of the object in every cache.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(object: kiln::libraries::Object) {
    /// println!("see `kiln cache show {:.12}`", object.key());
    /// # }
    /// ```
    #[must_use]
    pub fn key(&self) -> BuildKey {
        self.key
    }

    /// Returns the device that the object was made for.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(object: kiln::libraries::Object) {
    /// println!("for driver {}", object.device().driver_version);
    /// # }
    /// ```
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the origin of the object for the request that returned this handle.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(object: kiln::libraries::Object) {
    /// if object.origin() == kiln::build::Origin::Compiled {
    ///     println!("it was in no cache");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the compiler's messages; empty if there were none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(object: kiln::libraries::Object) {
    /// eprint!("{}", object.build_log());
    /// # }
    /// ```
    #[must_use]
    pub fn build_log(&self) -> &str {
        &self.build_log
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("key", &self.key)
            .field("device", &self.device)
            .field("origin", &self.origin)
            .field("bytes", &self.file.len())
            .finish_non_exhaustive()
    }
}

named_future! {
    /// A module that is compiled to an object. Returned by
    /// [`BuildRequest::object`](crate::BuildRequest::object).
    ///
    /// # Errors
    ///
    /// As for a [`Build`](crate::build::Build), and:
    ///
    /// * [`Unsupported`](crate::ErrorKind::Unsupported) if the driver links no objects, or if functions of the
    ///   module cannot be called from other objects on the device.
    /// * [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the module is native code already, or
    ///   untrusted.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no side effects. A compile that has begun runs to its end.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::libraries::CompileObject;
    ///
    /// # async fn example(rt: kiln::Runtime, modules: Vec<kiln::Module>) -> kiln::Result<()> {
    /// let compiles: Vec<CompileObject> = modules.iter().map(|it| rt.build(it).object()).collect();
    /// let objects = futures::future::try_join_all(compiles).await?;
    /// # Ok(())
    /// # }
    /// ```
    CompileObject => Result<Object>
}

impl BuildGraph {
    /// Compiles the module of a request to an object.
    pub(super) async fn object(self: &Arc<Self>, spec: BuildSpec) -> Result<Object> {
        let plan = self.object_plan(spec).await?;
        let (answer, plan) = self.request_object(plan).await?;
        let is_kept = matches!(answer, Answer::Kept(_));
        let built = answer.completed().await.map_err(|error| error.within(plan.describe()))?;
        let origin = if is_kept { Origin::Memory } else { built.origin() };
        let record = self.entry_record(&plan);
        let pack = {
            let built = Arc::clone(&built);
            move || entry_codec::pack(&built.key(), &built, record)
        };
        let packed = self.pool().threads().run(Priority::Short, pack).await??;
        Ok(Object {
            file: [packed.payload, packed.rest].concat().into(),
            key: built.key(),
            device: built.device().clone(),
            origin,
            build_log: built.build_log().into(),
        })
    }

    /// Returns the plan of the object of a request's module. Translates the module first, if the device does
    /// not take its format.
    async fn object_plan(self: &Arc<Self>, spec: BuildSpec) -> Result<BuildPlan> {
        let module = spec.module().clone();
        let device = self.device(spec.device());
        let refused = |reason: &str| Err(Error::invalid(format!("{} {reason}", describe(&module))));
        if module.format() == ModuleFormat::Native {
            return refused("is native code already; pass it to `Module::native` as it is");
        }
        if module.is_untrusted() {
            return refused(
                "is untrusted, and objects are linked in this process; build the whole program",
            );
        }
        let identity = self.device_key(spec.device()).identity();
        let target = LinkTarget { device, identity };
        if !target.links_native_with(module.format()) {
            return Err(Error::unsupported(format!(
                "the driver of `{}` links no objects made of {}, such as {}; register the module \
                 itself as a library",
                device.name,
                module.format(),
                describe(&module)
            )));
        }
        let mut plan = spec.alone(device, &target, self.environment_options())?;
        if plan.strategy() == BuildStrategy::TranslateFirst {
            plan = self.plan_in_spirv(&plan).await?;
        }
        if device.links_by_calls && !plan.module().can_be_called() {
            return Err(Error::unsupported(format!(
                "{} has functions that other objects cannot call on `{}`; register the module itself \
                 as a library, which Kiln merges with others",
                describe(&module),
                device.name
            )));
        }
        Ok(plan.into_object())
    }

    /// Reads the files that the key covers, then requests the object.
    async fn request_object(self: &Arc<Self>, mut plan: BuildPlan) -> Result<(Answer, BuildPlan)> {
        if plan.includes_files() {
            let limit = self.children().limit();
            let read = move || plan.read_files(limit).map(|()| plan);
            plan = self.read_files(false, read).await?;
        }
        self.counters().builds.requested.add_one();
        Ok((self.request_program(plan.clone(), |plan| self.pending_guard(plan)), plan))
    }
}
