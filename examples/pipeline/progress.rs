//! A line on the terminal while programs are compiled, shared by the examples `pipeline` and `film_look`.

use std::io::{IsTerminal, stderr};
use std::pin::pin;
use std::time::Duration;

use async_io::Timer;
use futures::StreamExt;
use futures::future::{Either, FutureExt, select};
use kiln::Runtime;

/// Time that compiling may take until a line is shown for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Awaits work that builds programs. While they are compiled for longer than a second, a line shows how many have
/// ended.
pub(crate) async fn shown<T>(rt: &Runtime, work: impl Future<Output = T>) -> T {
    match select(pin!(show_builds(rt)), pin!(work)).await {
        Either::Left(((), work)) => work.await,
        Either::Right((result, _)) => result,
    }
}

async fn show_builds(rt: &Runtime) {
    let mut changes = rt.progress();
    while let Some(first) = changes.next().await {
        if first.is_idle() {
            continue;
        }
        Timer::after(PATIENCE).await;
        let mut now = changes.next().now_or_never().flatten().unwrap_or(first);
        let _line = Line;
        while !now.is_idle() {
            if stderr().is_terminal() {
                let all = now.queued + now.compiling + now.done;
                eprint!("{CLEAR}  compiling: {} of {all} programs are done", now.done);
            }
            let Some(next) = changes.next().await else { return };
            now = next;
        }
    }
}

/// Returns to the start of the line, and clears it.
const CLEAR: &str = "\r\x1b[K";

/// Line that disappears when it is dropped.
struct Line;

impl Drop for Line {
    fn drop(&mut self) {
        if stderr().is_terminal() {
            eprint!("{CLEAR}");
        }
    }
}
