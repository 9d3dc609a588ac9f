//! A remote cache with wrong objects: whatever is stored in an object's place, a build gives the right program.
//! The object is refused by name, and replaced where that is allowed.

#![cfg(all(feature = "simulated", feature = "remote-redis"))]

use super::machines::Machine;
use super::machines::services::Redis;
use super::warnings::LogCapture;
use kiln::CacheConfig;
use kiln::build::Origin;
use kiln::remote::RemoteAccess;
use support::entries::Parts;
use tracing::Level;

/// Size of a trailer in bytes. `src/cache/remote/envelope.rs` describes the format.
const TRAILER: usize = 80;

/// Returns an object with this file, without authentication.
fn object(file: &[u8]) -> Vec<u8> {
    let mut object = file.to_vec();
    object.extend_from_slice(blake3::hash(file).as_bytes());
    object.extend_from_slice(&[0; 32]);
    object.extend_from_slice(&1u32.to_le_bytes());
    object.extend_from_slice(&0u32.to_le_bytes());
    object.extend_from_slice(b"KILNOBJ\xfe");
    object
}

/// A Redis with the objects of two programs, and their keys.
struct Fleet {
    redis: Redis,
    keys: [String; 2],
    capture: LogCapture,
}

impl Fleet {
    fn new() -> Option<Self> {
        let redis = Redis::start(&[])?;
        let capture = LogCapture::begin();
        let fleet = Self { redis, keys: Default::default(), capture };
        let machine = Machine::new();
        machine.build(fleet.cache(&machine), 0);
        let first = fleet.redis.only().0;
        machine.build(fleet.cache(&machine), 1);
        let mut keys = fleet.redis.keys();
        keys.retain(|key| *key != first);
        let second = keys.pop().expect("it is written");
        Some(Self { keys: [first, second], ..fleet })
    }

    fn cache(&self, machine: &Machine) -> CacheConfig {
        machine.cache(&self.redis.url())
    }

    fn get(&self, program: usize) -> Vec<u8> {
        let key = self.keys[program].as_bytes();
        self.redis.send(&[b"GET", key]).expect("it is there")
    }

    fn set(&self, program: usize, object: &[u8]) {
        self.redis.set(&self.keys[program], object);
    }

    /// Checks that program 0 is compiled if `object` is stored in its place, that one warning states this
    /// reason, and that the next machine loads the replaced object.
    fn assert_rejected(&self, object: &[u8], reason: &str) {
        let right = self.get(0);
        self.set(0, object);
        let earlier = self.capture.messages(Level::WARN).len();
        let machine = Machine::new();
        let (origin, stats) = machine.build(self.cache(&machine), 0);
        assert_eq!((origin, stats.remote.refused), (Origin::Compiled, 1), "{reason}");
        assert_eq!((stats.remote.misses, stats.remote.errors), (0, 0), "{reason}");
        let warnings = self.capture.messages(Level::WARN).split_off(earlier);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains(reason) && warnings[0].contains(&self.keys[0]["kiln/".len()..]),
            "{warnings:?}"
        );
        let next = Machine::new();
        assert_eq!(next.build(self.cache(&next), 0).0, Origin::Remote, "{reason}");
        self.set(0, &right);
    }
}

#[test]
fn damaged_and_foreign_objects_are_rejected_and_replaced() {
    let Some(fleet) = Fleet::new() else { return };
    let (right, other) = (fleet.get(0), fleet.get(1));
    let mut flipped = right.clone();
    flipped[40] ^= 4;
    let mut version = right.clone();
    let at = version.len() - TRAILER + 64;
    version[at..at + 4].copy_from_slice(&0u32.to_le_bytes());
    fleet.assert_rejected(
        &right[..right.len() / 2],
        "it does not end with the trailer of an object",
    );
    fleet.assert_rejected(&right[1..], "do not match its digest");
    fleet.assert_rejected(b"hello", "it does not end with the trailer of an object");
    fleet.assert_rejected(&flipped, "do not match its digest");
    fleet.assert_rejected(&other, "it is the entry of another key");
    fleet.assert_rejected(&version, "it has format version 0");
}

#[test]
fn intact_objects_with_invalid_entries_are_rejected_and_replaced() {
    let Some(fleet) = Fleet::new() else { return };
    let right = fleet.get(0);
    let file = &right[..right.len() - TRAILER];
    assert_eq!(object(file), right, "the format is as documented");
    let parts = Parts::of(file);
    fleet.assert_rejected(&object(b""), "it does not end with the footer of an entry");
    let old = Parts { version: 0, ..parts.clone() };
    fleet.assert_rejected(&object(&old.file()), "it has format version 0");
    let manifest = b"{}".to_vec();
    fleet.assert_rejected(&object(&Parts { manifest, ..parts.clone() }.file()), "cannot be read");
    // The object verifies, but the driver does not accept the binary.
    let payload = b"not what any driver makes".to_vec();
    fleet.assert_rejected(&object(&Parts { payload, ..parts }.file()), "the binary is damaged");
}

#[test]
fn an_object_of_a_newer_version_is_not_overwritten() {
    let Some(fleet) = Fleet::new() else { return };
    let mut newer = fleet.get(0);
    let at = newer.len() - TRAILER + 64;
    newer[at..at + 4].copy_from_slice(&9u32.to_le_bytes());
    fleet.set(0, &newer);
    let machine = Machine::new();
    let (origin, stats) = machine.build(fleet.cache(&machine), 0);
    assert_eq!((origin, stats.remote.writes), (Origin::Compiled, 0));
    assert_eq!(fleet.get(0), newer);
}

#[test]
fn objects_without_the_right_secret_are_rejected_and_replaced() {
    let Some(fleet) = Fleet::new() else { return };
    let with = |secret: &str, access| {
        let machine = Machine::new();
        let cache = fleet.cache(&machine).remote_secret(secret).remote_access(access);
        machine.build(cache, 0)
    };
    // Objects written without a secret, and with another secret.
    for secret in ["mine", "yours"] {
        let earlier = fleet.capture.messages(Level::WARN).len();
        let before = fleet.get(0);
        let (origin, stats) = with(secret, RemoteAccess::ReadOnly);
        assert_eq!((origin, stats.remote.refused), (Origin::Compiled, 1));
        assert_eq!(fleet.get(0), before, "a read-only machine replaces nothing");
        let warnings = fleet.capture.messages(Level::WARN).split_off(earlier);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("secret") && !warnings[0].contains(secret), "{warnings:?}");
        let (origin, stats) = with(secret, RemoteAccess::ReadWrite);
        assert_eq!((origin, stats.remote.refused, stats.remote.writes), (Origin::Compiled, 1, 1));
        let (origin, stats) = with(secret, RemoteAccess::ReadOnly);
        assert_eq!((origin, stats.remote.refused), (Origin::Remote, 0));
    }
    // A machine without a secret accepts the object.
    let machine = Machine::new();
    assert_eq!(machine.build(fleet.cache(&machine), 0).0, Origin::Remote);
}

#[test]
fn an_authenticated_object_is_valid_only_for_its_own_program() {
    let Some(redis) = Redis::start(&[]) else { return };
    let _alone = LogCapture::begin();
    let build = |number| {
        let machine = Machine::new();
        machine.build(machine.cache(&redis.url()).remote_secret("mine"), number)
    };
    build(0);
    let (first, object) = redis.only();
    build(1);
    for key in redis.keys() {
        redis.set(&key, &object);
    }
    assert!(redis.keys().contains(&first));
    assert_eq!(build(0).0, Origin::Remote);
    let (origin, stats) = build(1);
    assert_eq!((origin, stats.remote.refused), (Origin::Compiled, 1));
}

#[test]
fn oversized_objects_are_neither_read_nor_written() {
    let Some(fleet) = Fleet::new() else { return };
    let size = fleet.get(0).len() as u64;
    let build = |most: u64| {
        let machine = Machine::new();
        machine.build(fleet.cache(&machine).remote_max_bytes(most), 0)
    };
    assert_eq!(build(size).0, Origin::Remote);
    // The size of the written object varies slightly: it contains the time of its compile.
    let (origin, stats) = build(size / 2);
    assert_eq!((origin, stats.remote.refused), (Origin::Compiled, 1));
    assert_eq!((stats.remote.writes, stats.remote.writes_dropped), (0, 1));
    let (origin, stats) = build(size - 1);
    assert_eq!((origin, stats.remote.refused), (Origin::Compiled, 1));
}
