//! Records messages that are logged through `tracing`.

use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Recorder of the messages at level info and above, on all threads. Clones share their messages.
#[derive(Clone, Default)]
pub struct LogRecorder(Arc<Mutex<Vec<(Level, String)>>>);

impl LogRecorder {
    /// Records all messages of this process from now on. May be called once in a process.
    pub fn install() -> Self {
        let recorder = Self::default();
        tracing::subscriber::set_global_default(recorder.clone())
            .expect("no subscriber is set yet");
        recorder
    }

    /// Returns the messages at a level so far.
    pub fn at(&self, level: Level) -> Vec<String> {
        let messages = self.0.lock().expect("no thread panicked");
        let messages = messages.iter().filter(|(logged, _)| *logged == level);
        messages.map(|(_, text)| text.clone()).collect()
    }

    /// Discards the messages so far.
    pub fn clear(&self) {
        self.0.lock().expect("no thread panicked").clear();
    }
}

impl Subscriber for LogRecorder {
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
        self.0.lock().expect("no thread panicked").push((*event.metadata().level(), text.0));
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
