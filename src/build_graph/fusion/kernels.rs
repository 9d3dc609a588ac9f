//! Kernels of fused launches: compiled on a worker, and built like other programs.

use std::sync::Arc;

use kiln_compiler::fusion::{Candidate, Fused, FusionForm, Group, Launches, Part, Place};

use super::fuser::Fuser;
use super::group::{Further, LaunchGroup};
use super::material::Material;
use super::timing::Times;
use super::trial::ONE_BY_ONE;
use super::values::Values;
use super::way::{FusedKernel, Step, Way};
use crate::build_graph::kernel::Kernel;
use crate::build_graph::spec::BuildSpec;
use crate::error::{Error, Result};
use crate::executor::Priority;
use crate::source::module::Module;
use crate::sync::lock;

impl Fuser {
    /// Creates the group of a part, with the kernel that is expected to be the best or, if the times of the
    /// ways are known, with the fastest way. The kernels in `further` are [tried](Self::try_further) later.
    pub(super) async fn launch_group(
        self: &Arc<Self>,
        material: &Arc<Material>,
        values: &Values,
        part: Part,
        further: Vec<(Group, FusionForm)>,
    ) -> Result<LaunchGroup> {
        let Part { slots, candidates } = part;
        let mut group = LaunchGroup::new(slots);
        let Some(first) = candidates.into_iter().next() else { return Ok(group) };
        if material.is_tried {
            let timing = Arc::new(material.timing(
                self.graph.device_key(material.device),
                &group.slots,
                &first,
            )?);
            group.timing = Some(Arc::clone(&timing));
            if let Some(disk) = self.graph.disk()
                && let Some(times) = timing.load(disk.store()).await
                && self.restore(material, values, &group, &times).await
            {
                self.graph.record_choice(&timing, &times);
                return Ok(group);
            }
        }
        let way = group.trials.add();
        let kernel = self.build_candidate(material, first).await?;
        group.set_way(way, Way { steps: vec![Step::Kernel(Box::new(kernel))] });
        if material.is_tried {
            group.keep_material(material);
            let further = further.into_iter().map(|(kernels, form)| Further {
                way: group.trials.add(),
                group: kernels,
                form,
            });
            let further = further.collect();
            *lock(&group.further) = further;
        }
        Ok(group)
    }

    /// Sets the stored times of ways, and builds the kernels of the fastest. Returns `false` if they cannot be
    /// built or used.
    async fn restore(
        self: &Arc<Self>,
        material: &Arc<Material>,
        values: &Values,
        group: &LaunchGroup,
        times: &Times,
    ) -> bool {
        let one_by_one = Way::one_by_one(&group.slots).description();
        let Some((fastest, _)) = times.iter().min_by_key(|(_, time)| *time) else { return false };
        let mut built = None;
        if *fastest != one_by_one {
            let (slots, fastest) = (group.slots.clone(), fastest.clone());
            let find = move |launches: &Launches<'_>| Material::rebuild(launches, &slots, &fastest);
            let parts = self.find_parts(material, values, find).await;
            let Some(parts) = parts else { return false };
            let Ok(way) = self.build_parts(material, parts).await else { return false };
            built = Some(way);
        }
        let fastest = fastest.clone();
        let mut known = Vec::new();
        for (way, time) in times {
            let index = if *way == one_by_one { ONE_BY_ONE } else { group.trials.add() };
            if *way == fastest
                && let Some(built) = built.take()
            {
                group.set_way(index, built);
            }
            known.push((index, *time));
        }
        group.trials.set_known(&known);
        true
    }

    /// Calls `run` with the launches, on a worker.
    pub(super) async fn with_launches<T: Send + 'static>(
        &self,
        material: &Arc<Material>,
        run: impl FnOnce(&Launches<'_>) -> T + Send + 'static,
    ) -> Result<T> {
        let material = Arc::clone(material);
        let is_untrusted = material.available().any(|source| source.is_untrusted);
        let compile = move || {
            let exceeded_limit = |fused: &Fused| material.exceeded_limit(fused);
            run(&material.launches(&exceeded_limit))
        };
        self.graph.pool_for(is_untrusted).threads().run(Priority::Short, compile).await
    }

    /// Returns the parts that `find` finds on a worker, if their kernels hold wherever a result with the
    /// conditions `values` does.
    pub(super) async fn find_parts(
        &self,
        material: &Arc<Material>,
        values: &Values,
        find: impl FnOnce(&Launches<'_>) -> Option<Vec<Part>> + Send + 'static,
    ) -> Option<Vec<Part>> {
        let own = Arc::clone(material);
        let compile = move |launches: &Launches<'_>| {
            let parts = find(launches)?;
            let needed = own.values_of_parts(launches, &parts);
            Some((parts, needed))
        };
        let (parts, needed) = self.with_launches(material, compile).await.ok()??;
        values.imply(&needed).then_some(parts)
    }

    /// Builds the kernels of parts that run one after another.
    pub(super) async fn build_parts(
        self: &Arc<Self>,
        material: &Material,
        parts: Vec<Part>,
    ) -> Result<Way> {
        let mut steps = Vec::new();
        for Part { slots, candidates } in parts {
            match candidates.into_iter().next() {
                Some(candidate) => {
                    let kernel = self.build_candidate(material, candidate).await?;
                    steps.push(Step::Kernel(Box::new(kernel)));
                }
                None => steps.extend(slots.into_iter().map(Step::Launch)),
            }
        }
        Ok(Way { steps })
    }

    /// Builds the kernel of a candidate.
    pub(super) async fn build_candidate(
        self: &Arc<Self>,
        material: &Material,
        candidate: Candidate,
    ) -> Result<FusedKernel> {
        let Candidate { group, form, outcome } = candidate;
        let fused = outcome.fused.map_err(Error::unsupported)?;
        lock(&material.in_build).clone_from(&fused.kernel);
        let _turn = match material.is_awaited {
            true => None,
            false => Some(self.background_turn(material.device).await),
        };
        let members = group.members();
        let sources = members.iter().map(|&member| material.plan.slots[member].module);
        let sources: Vec<_> =
            sources.filter_map(|module| material.sources[module].as_ref().ok()).collect();
        let is_untrusted = sources.iter().any(|source| source.is_untrusted);
        let is_text = sources.iter().all(|source| source.is_text);
        let module = Module::spirv(fused.module.assemble())?.untrusted_if(is_untrusted);
        let mut spec = BuildSpec::new(module, material.device);
        spec.set_all_options(sources.first().map_or("", |source| source.options.as_str()));
        let built = match is_text {
            true => self.graph.build_as_text(spec).await,
            false => self.graph.request(spec).completed().await,
        };
        let kernel = Kernel::of_fused(&built?, &fused.kernel, &Arc::downgrade(&self.graph))?;
        let place = |places: &Vec<Place>| {
            let &Place { slot, argument } = places.first()?;
            Some(Place { slot: *members.get(slot)?, argument })
        };
        let recomputed = material.launches(&|_| None).written_by(&group.repeated);
        let mut internalized = fused.internalized;
        internalized.retain(|memory| !recomputed.contains(memory));
        Ok(FusedKernel {
            slots: group.slots,
            repeated: group.repeated,
            form,
            kernel,
            range: fused.range,
            parameters: fused.parameters.iter().filter_map(place).collect(),
            internalized,
            recomputed,
        })
    }
}
