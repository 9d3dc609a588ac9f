//! What is told through `tracing` while a test runs, on whatever thread.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Keeps what is told at level info and above. One test at a time may listen.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<(Level, String)>>>);

/// Listens from here on, alone, until dropped.
pub struct Listening {
    listener: Listener,
    _alone: MutexGuard<'static, ()>,
}

impl Listening {
    pub fn begin() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        static LISTENER: OnceLock<Listener> = OnceLock::new();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = LISTENER.get_or_init(|| {
            let listener = Listener::default();
            tracing::subscriber::set_global_default(listener.clone()).expect("it is the first");
            listener
        });
        listener.0.lock().expect("nobody panicked").clear();
        Self { listener: listener.clone(), _alone: alone }
    }

    /// What was told of the remote cache at a level so far.
    pub fn told(&self, level: Level) -> Vec<String> {
        let told = self.listener.0.lock().expect("nobody panicked");
        let told = told.iter().filter(|(of, text)| *of == level && text.contains("remote"));
        told.map(|(_, text)| text.clone()).collect()
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.is_event()
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().expect("nobody panicked").push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{field}: {value:?}; ");
    }
}
