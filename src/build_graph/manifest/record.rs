//! Recording of what a graph builds and uses.

use std::sync::Arc;
use std::time::Instant;

use crate::build_graph::fusion::{Times, Timing};
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::outcome::Answer;
use crate::build_graph::plan::BuildPlan;
use crate::cache::manifest::line::Line;
use crate::digest::BuildKey;

impl BuildGraph {
    /// Records the use of a plan's program in the build manifests, once the program exists.
    pub(in crate::build_graph) fn record_use(self: &Arc<Self>, plan: BuildPlan, answer: &Answer) {
        if !plan.is_stored() {
            return;
        }
        let (key, time) = (self.key(&plan), Instant::now());
        match answer {
            Answer::Refused(_) | Answer::Kept(Err(_)) => {}
            Answer::Kept(Ok(_)) => self.note_program(&plan, key, time),
            Answer::Building(_) | Answer::Reading(_) => {
                let pending: Vec<_> =
                    self.recorders().iter().map(|recorder| recorder.writer.begin()).collect();
                let (graph, answer) = (Arc::clone(self), answer.clone());
                let note = async move {
                    if answer.completed().await.is_ok() {
                        graph.note_program(&plan, key, time);
                    }
                    drop(pending);
                };
                if let Err(error) = self.builds().spawn(note) {
                    tracing::debug!(%error, "the use of a program is not recorded");
                }
            }
        }
    }

    fn note_program(&self, plan: &BuildPlan, key: BuildKey, time: Instant) {
        let device = self.device_key(plan.device());
        for recorder in self.recorders().iter() {
            recorder.note_program(plan, key, device, time);
        }
    }

    /// Records the times of ways to run launches.
    pub(in crate::build_graph) fn record_choice(&self, timing: &Timing, times: &Times) {
        let mut devices = self.device_positions().map(|position| self.device_key(position));
        let Some(device) = devices.find(|device| device.folder() == timing.folder()) else {
            return;
        };
        for recorder in self.recorders().iter() {
            let line = timing.line(device, times);
            recorder.note(line.key, device, Instant::now(), |_| Line::Choice(line));
        }
    }
}
