//! Progress bars.

use std::pin::pin;
use std::time::Duration;

use async_io::Timer;
use futures::future::{Either, FutureExt, select};
use futures::stream::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use kiln::Runtime;
use kiln::build::BuildProgress;

/// Time that builds may take until a bar is shown for them.
const PATIENCE: Duration = Duration::from_secs(1);

/// Creates a progress bar, which is shown on terminals only.
pub(crate) fn bar(what: &str, all: usize) -> ProgressBar {
    let bar = ProgressBar::new(all as u64);
    let template = format!("{what} {{bar:30}} {{pos}}/{{len}} {{elapsed}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar.tick();
    bar
}

/// Awaits work that builds programs. While it builds for longer than a second, a progress bar is shown.
pub(crate) async fn while_building<T>(rt: &Runtime, work: impl Future<Output = T>) -> T {
    // The bar comes first, so that it is gone before the work prints anything.
    match select(pin!(show_builds(rt)), pin!(work)).await {
        Either::Left(((), work)) => work.await,
        Either::Right((result, _)) => result,
    }
}

/// Shows a bar whenever builds take long, until the runtime ends.
async fn show_builds(rt: &Runtime) {
    let mut changes = rt.progress();
    while let Some(first) = changes.next().await {
        if first.is_idle() {
            continue;
        }
        Timer::after(PATIENCE).await;
        let mut now = changes.next().now_or_never().flatten().unwrap_or(first);
        if now.is_idle() {
            continue;
        }
        let shown = Shown(bar("compiling", 0));
        while !now.is_idle() {
            shown.update(first.done, now);
            let Some(next) = changes.next().await else { return };
            now = next;
        }
    }
}

/// Bar that disappears when it is dropped.
struct Shown(ProgressBar);

impl Shown {
    /// Shows the builds since the number of those that had ended was `before`.
    fn update(&self, before: u64, BuildProgress { queued, compiling, done, .. }: BuildProgress) {
        self.0.set_length(queued + compiling + done - before);
        self.0.set_position(done - before);
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
