//! A process in which moka frees nothing for a while, as any use of moka in an application can cause.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Once};

use moka::sync::Cache;

/// Calls a function while moka frees nothing that is removed from any cache of the process.
pub fn while_moka_frees_nothing(function: fn()) {
    let key = SlowToCompare(Arc::new((Once::new(), function)));
    let cache = Cache::new(1);
    cache.insert(key.clone(), ());
    cache.get(&key);
    assert!(key.0.0.is_completed(), "the keys were not compared");
}

/// Key whose first comparison calls a function. moka compares keys in a section in which it frees nothing.
#[derive(Clone)]
struct SlowToCompare(Arc<(Once, fn())>);

impl PartialEq for SlowToCompare {
    fn eq(&self, _: &Self) -> bool {
        let (once, function) = &*self.0;
        once.call_once(function);
        true
    }
}

impl Eq for SlowToCompare {}

impl Hash for SlowToCompare {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
