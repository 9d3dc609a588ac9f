//! Damaged entries: whatever is stored in an entry's place, a build gives the right program, the next put
//! repairs the entry, and the application gets no error.

#![cfg(feature = "simulated")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::executor::block_on;
use kiln::build::Origin;
use kiln::simulated::{Fault, Simulator};
use kiln::store::{EntryCheck, Store};
use kiln::{CacheConfig, Module, Runtime, Stats};
use support::entries::{FIELDS, FOOTER, Parts, version};
use support::stores;
use support::{module_for, on_each_device};
use tempfile::TempDir;

/// Returns program `number`, whose kernel has a name of its own.
async fn module(rt: &Runtime, number: u32) -> Module {
    let source =
        format!("kernel void write_{number}(global uint *x) {{ x[get_global_id(0)] = {number}; }}");
    module_for(rt, &source).await
}

/// A store, and the device of its programs.
struct Bench {
    directory: TempDir,
    device: Device,
}

enum Device {
    Simulated(Simulator),
    /// Selector of the device.
    Real(String),
}

impl Bench {
    fn simulated() -> Self {
        let simulator = Simulator::immediate();
        for number in 0..4 {
            simulator.kernel(format!("write_{number}"), move |call| {
                let items = call.global_size()[0];
                call.write(0, &vec![number; items]);
            });
        }
        Self::on(Device::Simulated(simulator))
    }

    fn on(device: Device) -> Self {
        Self { directory: tempfile::tempdir().expect("there is disk space"), device }
    }

    fn store(&self) -> Store {
        stores::open(self.directory.path())
    }

    /// Starts as another process would, builds program `number`, checks that it is the right one, and waits
    /// until everything is written.
    fn start(&self, number: u32) -> (Origin, Stats) {
        self.start_with(number, CacheConfig::at(self.directory.path()))
    }

    fn start_with(&self, number: u32, cache: CacheConfig) -> (Origin, Stats) {
        let builder = Runtime::builder().cache(cache);
        let builder = match &self.device {
            Device::Simulated(simulator) => builder.simulator(simulator),
            Device::Real(selector) => builder.device(selector.as_str()),
        };
        block_on(async {
            let rt = builder.build().await.expect("it starts");
            let program = rt.build(&module(&rt, number).await).await.expect("it builds");
            let name = format!("write_{number}");
            assert_eq!(program.kernel_names(), [&*name]);
            // SAFETY: it writes one element a work-item.
            let write = unsafe { program.kernel(&name) }.expect("the kernel exists");
            let x = rt.buffer_from(vec![u32::MAX; 8]).await.expect("there is memory");
            rt.queue().submit(write.launch(8).args((&x,))).expect("it fits");
            assert_eq!(rt.queue().read(&x).await.expect("it runs"), [number; 8]);
            rt.drain().await;
            (program.origin(), rt.stats())
        })
    }

    /// Stores program `number`, and returns the file of its entry.
    fn entry(&self, number: u32) -> PathBuf {
        let store = self.store();
        let paths = || stores::entries(&store).into_iter().map(|entry| entry.path().to_owned());
        let before: Vec<_> = paths().collect();
        assert_eq!(self.start(number).0, Origin::Compiled);
        paths().find(|path| !before.contains(path)).expect("it is stored")
    }

    /// Checks that a start compiles program 1 if its entry is damaged, and that the next start loads it from
    /// disk. Returns the counts of the first start.
    fn assert_replaced(&self, what: &str) -> Stats {
        let (origin, first) = self.start(1);
        assert_eq!((origin, first.builds.compiles), (Origin::Compiled, 1), "{what}");
        assert_eq!((first.disk.misses, first.disk.hits), (1, 0), "{what}");
        assert_eq!((first.disk.writes, first.disk.failures), (1, 0), "{what}");
        let (origin, second) = self.start(1);
        assert_eq!((origin, second.builds.compiles), (Origin::Disk, 0), "{what}");
        assert_eq!((second.disk.damaged, second.disk.refused), (0, 0), "{what}");
        first
    }

    /// Like `assert_replaced`, for damage that is detected before a driver gets the entry.
    fn assert_damage_is_replaced(&self, what: &str) {
        let stats = self.assert_replaced(what);
        assert_eq!((stats.disk.damaged, stats.disk.refused), (1, 0), "{what}");
    }
}

fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::write(path, bytes).expect("the store belongs to this test");
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).expect("it exists")
}

/// Returns the positions in a file, one for each class of bytes, by name.
fn places(file: &[u8]) -> Vec<(String, usize)> {
    let Parts { payload, manifest, .. } = Parts::of(file);
    let footer = file.len() - FOOTER;
    let mut places = vec![
        ("first of the payload".to_owned(), 0),
        ("middle of the payload".to_owned(), payload.len() / 2),
        ("last of the payload".to_owned(), payload.len() - 1),
        ("first of the manifest".to_owned(), payload.len()),
        ("middle of the manifest".to_owned(), payload.len() + manifest.len() / 2),
        ("last of the manifest".to_owned(), footer - 1),
    ];
    for (name, start, end) in FIELDS {
        places.push((format!("first of the {name}"), footer + start));
        places.push((format!("last of the {name}"), footer + end - 1));
    }
    places
}

#[test]
fn entries_with_a_flipped_byte_are_replaced() {
    let bench = Bench::simulated();
    let path = bench.entry(1);
    let whole = read(&path);
    for (name, at) in places(&whole) {
        for bits in [0x01, 0x80, 0xFF] {
            let mut bytes = whole.clone();
            bytes[at] ^= bits;
            if version(&bytes) > 1 {
                continue; // Now it is an entry of a newer version, which is left in place.
            }
            write(&path, &bytes);
            bench.assert_damage_is_replaced(&format!("{name} ^ {bits:#x}"));
        }
    }
}

/// The directory may have been created by another user after the store was opened.
#[test]
#[cfg(unix)]
fn entries_that_other_users_could_have_written_are_replaced() {
    use std::os::unix::fs::{PermissionsExt, chown};

    let bench = Bench::simulated();
    let path = bench.entry(1);
    for mode in [0o620, 0o602, 0o666] {
        fs::set_permissions(&path, PermissionsExt::from_mode(mode))
            .expect("it belongs to this test");
        bench.assert_damage_is_replaced(&format!("{mode:o}"));
    }
    // Only root can give a file away.
    if chown(&path, Some(12_345), None).is_ok() {
        bench.assert_damage_is_replaced("another user's");
    }
}

#[test]
fn truncated_zeroed_or_extended_entries_are_replaced() {
    let bench = Bench::simulated();
    let path = bench.entry(1);
    let whole = read(&path);
    let length = whole.len();
    for (name, at) in places(&whole) {
        write(&path, &whole[..at]);
        bench.assert_damage_is_replaced(&format!("cut before the {name}"));
        write(&path, [&whole[..at], &vec![0; length - at]].concat());
        bench.assert_damage_is_replaced(&format!("zeros from the {name} on"));
    }
    write(&path, &whole[1..]);
    bench.assert_damage_is_replaced("without its first byte");
    write(&path, &whole[length - FOOTER..]);
    bench.assert_damage_is_replaced("only the footer");
    // A file system may lose a block in the middle of a file in a crash.
    write(&path, [&whole[..8], &[0; 24], &whole[32..]].concat());
    bench.assert_damage_is_replaced("a hole");
    for more in [1, FOOTER, 4096] {
        write(&path, [&whole[..], &vec![0; more]].concat());
        bench.assert_damage_is_replaced(&format!("{more} zeros more"));
    }
    write(&path, [&whole[..], &whole].concat());
    bench.assert_damage_is_replaced("twice the same");
    // Far larger than any entry: it is not even read.
    File::options().write(true).open(&path).and_then(|file| file.set_len(1 << 40)).expect("a hole");
    bench.assert_damage_is_replaced("a terabyte");
}

#[test]
fn swapped_entries_are_replaced() {
    let bench = Bench::simulated();
    let (one, two) = (bench.entry(1), bench.entry(2));
    let (bytes_of_one, bytes_of_two) = (read(&one), read(&two));
    write(&one, &bytes_of_two);
    write(&two, &bytes_of_one);
    bench.assert_damage_is_replaced("the other's");
    let (origin, stats) = bench.start(2);
    assert_eq!((origin, stats.disk.damaged), (Origin::Compiled, 1));
    assert_eq!(bench.start(2).0, Origin::Disk);
    assert_eq!(Parts::of(&read(&one)).payload, Parts::of(&bytes_of_one).payload);
}

#[test]
fn an_entry_of_a_newer_version_is_left_alone() {
    let bench = Bench::simulated();
    let path = bench.entry(1);
    let newer = Parts { version: 2, ..Parts::of(&read(&path)) };
    let forms = [
        newer.file(),
        Parts { version: u32::MAX, payload: b"all new".to_vec(), ..newer }.file(),
        // Only the last bytes of other versions have a known format.
        [&[7; FOOTER - 16][..], &3u32.to_le_bytes(), &[9; 4], b"KILN\r\n\x1a\xfe"].concat(),
    ];
    for bytes in forms {
        write(&path, &bytes);
        for _ in 0..2 {
            let (origin, stats) = bench.start(1);
            assert_eq!((origin, stats.builds.compiles), (Origin::Compiled, 1));
            assert_eq!((stats.disk.writes, stats.disk.skips), (0, 1));
            assert_eq!(stats.disk.failures, 0);
        }
        assert_eq!(read(&path), bytes);
    }
}

#[test]
fn an_entry_of_an_older_version_is_replaced() {
    let bench = Bench::simulated();
    let path = bench.entry(1);
    let whole = Parts::of(&read(&path));
    write(&path, Parts { version: 0, ..whole }.file());
    bench.assert_damage_is_replaced("version 0");
    assert_eq!(Parts::of(&read(&path)).version, 1);
}

#[test]
fn a_foreign_file_is_replaced() {
    let bench = Bench::simulated();
    let path = bench.entry(1);
    let text = "Not an entry. ".repeat(100);
    for foreign in [&b""[..], b"x", &text.as_bytes()[..FOOTER - 1], text.as_bytes(), b"\x7fELF"] {
        write(&path, foreign);
        bench.assert_damage_is_replaced(&format!("a foreign file of {} bytes", foreign.len()));
    }
}

#[test]
fn a_directory_in_place_of_an_entry_is_set_aside_with_its_files() {
    let bench = Bench::simulated();
    let path = bench.entry(1);
    fs::remove_file(&path).expect("it exists");
    fs::create_dir(&path).expect("the path is free");
    bench.assert_damage_is_replaced("an empty directory");

    fs::remove_file(&path).expect("it exists");
    fs::create_dir(&path).expect("the path is free");
    write(&path.join("thesis.tex"), "three years of work");
    bench.assert_damage_is_replaced("somebody's directory");
    let aside = fs::read_dir(bench.directory.path().join("v1/tmp")).expect("it exists");
    let kept: Vec<_> = aside.map(|file| file.expect("it can be listed").path()).collect();
    let [kept] = &kept[..] else { panic!("one directory is set aside: {kept:?}") };
    assert_eq!(read(&kept.join("thesis.tex")), b"three years of work");
}

/// A pipe blocks readers until it has a writer, and a socket cannot be opened at all.
#[cfg(target_os = "linux")]
#[test]
fn files_of_other_types_are_replaced_without_blocking() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let bench = Bench::simulated();
    let path = bench.entry(1);
    fs::remove_file(&path).expect("it exists");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("the path is free");
    bench.assert_damage_is_replaced("a pipe");
    fs::remove_file(&path).expect("it exists");
    let _socket = std::os::unix::net::UnixListener::bind(short(&path)).expect("the path is free");
    bench.assert_damage_is_replaced("a socket");
}

/// Returns the same path in few enough bytes for a socket.
#[cfg(target_os = "linux")]
fn short(path: &Path) -> PathBuf {
    use std::os::fd::{AsRawFd, IntoRawFd};

    let parent = File::open(path.parent().expect("it has one")).expect("it can be opened");
    let number = parent.as_raw_fd();
    // The directory stays open until the process ends.
    let _ = parent.into_raw_fd();
    Path::new("/proc/self/fd").join(number.to_string()).join(path.file_name().expect("it has one"))
}

/// An attacker who can place a link in the store could place a program there as well. But a link that was left
/// by accident must not cause a file elsewhere to be replaced or run.
#[cfg(unix)]
#[test]
fn symbolic_links_are_replaced_and_not_followed() {
    use std::os::unix::fs::symlink;

    let bench = Bench::simulated();
    let path = bench.entry(1);
    let elsewhere = bench.directory.path().join("elsewhere");
    fs::rename(&path, &elsewhere).expect("it exists");
    let bytes = read(&elsewhere);
    for target in [&*elsewhere, Path::new("/nowhere/at/all"), &path, bench.directory.path()] {
        let _ = fs::remove_file(&path);
        symlink(target, &path).expect("the path is free");
        bench.assert_damage_is_replaced(&format!("a link to {}", target.display()));
        assert!(fs::symlink_metadata(&path).expect("it exists").is_file());
    }
    assert_eq!(read(&elsewhere), bytes);
}

#[test]
fn entries_with_a_forged_manifest_or_length_are_replaced() {
    let bench = Bench::simulated();
    let path = bench.entry(1);
    let whole = Parts::of(&read(&path));
    for manifest in [&b""[..], b"{}", b"null", b"\xFF\xFE", &b"[".repeat(100_000)] {
        write(&path, Parts { manifest: manifest.to_vec(), ..whole.clone() }.file());
        bench.assert_damage_is_replaced(&format!("a manifest of {} bytes", manifest.len()));
    }
    let (payload, manifest) = (whole.payload.len() as u64, whole.manifest.len() as u64);
    for (payload, manifest) in [
        (payload + 1, manifest - 1),
        (payload + 1, manifest),
        (0, payload + manifest),
        (payload + manifest, 0),
        (u64::MAX, payload + manifest + 1),
        (u64::MAX, u64::MAX),
    ] {
        write(&path, whole.file_with_lengths(payload, manifest));
        bench.assert_damage_is_replaced(&format!("lengths {payload} and {manifest}"));
    }
}

/// A valid checksum only proves that the bytes were not changed since they were written: the compiler may have
/// written wrong ones, or the driver may have changed without a new version.
#[test]
fn entries_whose_payload_the_driver_refuses_are_replaced() {
    let bench = Bench::simulated();
    let (path, other) = (bench.entry(1), bench.entry(2));
    let whole = Parts::of(&read(&path));
    let mut flipped = whole.payload.clone();
    flipped[whole.payload.len() / 2] ^= 1;
    let half = whole.payload[..whole.payload.len() / 2].to_vec();
    for (what, payload) in [
        ("flipped", flipped),
        ("half", half),
        ("empty", Vec::new()),
        ("zeros", vec![0; 1000]),
        ("another program's", Parts::of(&read(&other)).payload),
    ] {
        write(&path, Parts { payload, ..whole.clone() }.file());
        let stats = bench.assert_replaced(what);
        assert_eq!((stats.disk.damaged, stats.disk.refused), (0, 1), "{what}");
    }
    assert_eq!(Parts::of(&read(&path)).payload, whole.payload);
}

#[test]
fn a_stored_program_that_a_device_refuses_is_rebuilt() {
    let bench = Bench::simulated();
    bench.entry(1);
    let Device::Simulated(simulator) = &bench.device else { panic!("it is simulated") };
    simulator.fail_builds(1, Fault::Refused);
    let stats = bench.assert_replaced("refused once");
    assert_eq!((stats.disk.damaged, stats.disk.refused), (0, 1));
}

/// An entry that cannot be read because of the driver or the machine is not damaged, and stays.
#[test]
fn running_out_of_memory_while_loading_is_retried_and_is_not_a_miss() {
    let bench = Bench::simulated();
    bench.entry(1);
    let Device::Simulated(simulator) = &bench.device else { panic!("it is simulated") };
    simulator.fail_builds(2, Fault::OutOfResources);
    let (origin, stats) = bench.start(1);
    assert_eq!((origin, stats.builds.retries), (Origin::Disk, 2));
    assert_eq!((stats.disk.refused, stats.disk.misses, stats.disk.writes), (0, 0, 0));
}

/// Damage is found before a driver gets the entry, so a few kinds suffice here. Payloads with a valid checksum
/// are always some program of the same driver: PoCL ends the process for others.
#[test]
fn real_drivers_never_see_damage_and_refuse_another_program() {
    // This executor allows another one to run inside it.
    smol::block_on(on_each_device(async |rt: Runtime| {
        let bench = Bench::on(Device::Real(rt.device().index().to_string()));
        let (path, other) = (bench.entry(1), bench.entry(2));
        let whole = read(&path);
        let mut flipped = whole.clone();
        flipped[Parts::of(&whole).payload.len() / 2] ^= 1;
        write(&path, flipped);
        bench.assert_damage_is_replaced("a flipped bit");
        write(&path, &whole[..whole.len() / 2]);
        bench.assert_damage_is_replaced("half");
        write(&path, read(&other));
        bench.assert_damage_is_replaced("another's entry");
        let payload = Parts::of(&read(&other)).payload;
        write(&path, Parts { payload, ..Parts::of(&whole) }.file());
        let stats = bench.assert_replaced("another program");
        assert_eq!((stats.disk.damaged, stats.disk.refused), (0, 1));
    }));
}

#[test]
fn devices_of_one_identity_share_programs() {
    let bench = Bench::simulated();
    bench.entry(1);
    let again = Bench::simulated();
    let cache = || CacheConfig::at(bench.directory.path());
    assert_eq!(again.start_with(1, cache()).0, Origin::Disk);

    // Another device has other programs, until the two are configured as equal.
    let names = ["Card A", "Card B"];
    let [a, b] = names.map(|name| {
        let Device::Simulated(simulator) = Bench::simulated().device else { unreachable!() };
        Bench {
            directory: tempfile::tempdir().expect("there is disk space"),
            device: Device::Simulated(simulator.named(name)),
        }
    });
    assert_eq!(a.start_with(2, cache()).0, Origin::Compiled);
    assert_eq!(b.start_with(2, cache()).0, Origin::Compiled);
    let widened = || {
        cache().device_identity(|device| {
            let family = device.name.split(' ').next().unwrap_or_default().to_owned();
            vec![("family".to_owned(), family)]
        })
    };
    assert_eq!(a.start_with(3, widened()).0, Origin::Compiled);
    assert_eq!(b.start_with(3, widened()).0, Origin::Disk);

    // A program that one of them then refuses is built again.
    let Device::Simulated(simulator) = &b.device else { unreachable!() };
    simulator.fail_builds(1, Fault::Refused);
    let (origin, stats) = b.start_with(3, widened());
    assert_eq!((origin, stats.disk.refused), (Origin::Compiled, 1));
    assert_eq!(a.start_with(3, widened()).0, Origin::Disk);
}

#[test]
fn checking_an_entry_reports_what_is_wrong_with_it() {
    let bench = Bench::simulated();
    let path = bench.entry(1);
    let whole = read(&path);
    let store = bench.store();
    let check = || block_on(store.check(&stores::only_entry(&store)));
    assert!(matches!(check(), EntryCheck::Whole(entry) if entry.bytes() == whole));
    write(&path, &whole[1..]);
    let EntryCheck::Unusable(reason) = check() else { panic!("it is damaged") };
    assert_eq!(reason.to_string(), "its length does not match its footer");
}

#[test]
fn waiting_for_a_damaged_entry_counts_the_damage_once() {
    let bench = Bench::simulated();
    let path = bench.entry(1);
    write(&path, "no entry");
    let Device::Simulated(slow) = &bench.device else { panic!("it is simulated") };
    let other = Bench::simulated();
    let pause = slow.pause_compiles();
    let cache = CacheConfig::at(bench.directory.path());
    let builds = std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.start(1));
        // Time for the first build to start, and for many checks by the other.
        std::thread::sleep(Duration::from_millis(100));
        let second = scope.spawn(|| other.start_with(1, cache.clone()));
        std::thread::sleep(Duration::from_millis(400));
        drop(pause);
        [first, second].map(|build| build.join().expect("it builds").1)
    });
    let compiles: u64 = builds.iter().map(|stats| stats.builds.compiles).sum();
    assert_eq!(compiles, 1, "{builds:?}");
    assert!(builds.iter().all(|stats| stats.disk.damaged <= 1), "{builds:?}");
}
