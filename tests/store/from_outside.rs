//! A store as applications use it directly: entries are listed, read, verified, moved and removed, and any of
//! these operations can be dropped at any point.

use std::fs::{self, File};
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use futures::FutureExt;
use futures::executor::block_on;
use futures::io::{AsyncRead, AsyncWrite, Cursor};
use futures::stream::StreamExt;
use kiln::build::BuildKey;
use kiln::store::{EntryCheck, EntryInfo, Store};
use kiln::{CacheConfig, ErrorKind};
use support::entries::Parts;
use support::stores;
use tempfile::TempDir;

const HOUR: Duration = Duration::from_secs(3600);

/// Time after which work in the background counts as hanging.
const HANGS: Duration = Duration::from_secs(60);

/// Returns the name and the file of entry `number`, of about 5 KiB.
fn entry(number: u8) -> (String, Vec<u8>) {
    let manifest =
        br#"{"fields":[],"kernels":[],"build_microseconds":0,"created":0,"tools":[]}"#.to_vec();
    let parts = Parts { payload: vec![number; 5000], manifest, key: [number; 32], version: 1 };
    let digits = format!("{number:02x}");
    (format!("0123456789abcdef/{digits}/{}.kiln", digits.repeat(31)), parts.file())
}

fn import(store: &Store, (name, file): (String, Vec<u8>)) -> kiln::Result<BuildKey> {
    block_on(store.import(&name, Cursor::new(file)))
}

/// Creates a store with entries `0..entries`, which were not used for hours.
fn store_with(entries: u8) -> (TempDir, Store) {
    let directory = tempfile::tempdir().expect("there is disk space");
    let store = stores::open(directory.path());
    for number in 0..entries {
        import(&store, entry(number)).expect("it can be written");
    }
    for entry in stores::entries(&store) {
        let file = File::options().write(true).open(entry.path()).expect("it exists");
        file.set_modified(SystemTime::now() - 10 * HOUR).expect("it belongs to this test");
    }
    (directory, store)
}

/// Polls a future up to `most` times, each time when it was woken, and drops it if it is not ready then.
fn poll_up_to<F: Future + Unpin>(most: usize, mut future: F) -> Option<F::Output> {
    let mut polls = 0;
    block_on(poll_fn(|context| {
        if polls == most {
            return Poll::Ready(None);
        }
        polls += 1;
        Pin::new(&mut future).poll(context).map(Some)
    }))
}

/// Waits until a condition holds, which work in the background brings about.
#[track_caller]
fn wait_until(holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < HANGS, "work in the background does not end");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until no temporary file is left, and checks that every other file belongs to the store, and every
/// entry is intact. Returns the number of entries.
#[track_caller]
fn assert_is_whole(root: &Path, store: &Store) -> usize {
    let version = root.join("v1");
    let files = |folder: &Path| {
        let files = fs::read_dir(folder).into_iter().flatten();
        files.map(|file| file.expect("it can be listed").path()).collect::<Vec<_>>()
    };
    // A call that was in progress when its future was dropped still runs to its end.
    wait_until(|| {
        let shards = files(&version.join("0123456789abcdef"));
        let stored: usize = shards.iter().map(|shard| files(shard).len()).sum();
        files(&version.join("tmp")).is_empty() && stored == stores::entries(store).len()
    });
    let mut entries = 0;
    for (entry, checked) in block_on(store.verify().collect::<Vec<_>>()) {
        match checked {
            EntryCheck::Whole(_) => entries += 1,
            EntryCheck::Unreadable(error) if error.kind() == io::ErrorKind::NotFound => {}
            damaged => panic!("{entry:?} is {damaged:?}"),
        }
    }
    for file in files(&version) {
        let name = file.file_name().expect("it has one").to_str().expect("it is Unicode");
        let known = ["0123456789abcdef", "CACHEDIR.TAG", "lock", "state", "tmp"];
        assert!(known.contains(&name), "{} is left", file.display());
    }
    entries
}

#[test]
fn an_entry_is_read_by_its_name_unless_it_is_damaged() {
    let (_directory, store) = store_with(1);
    let get = |name: &str| block_on(store.get(name));
    let used = stores::only_entry(&store).used();
    let (name, file) = entry(0);
    let found = get(&name).expect("it can be read").expect("it was imported");
    assert_eq!(found.bytes(), file);
    assert_eq!(stores::only_entry(&store).used(), used, "this is not a use");
    assert!(get(&entry(1).0).expect("there is no error").is_none());
    let refused = get(name.strip_suffix(".kiln").expect("it has a suffix"));
    assert_eq!(refused.expect_err("it is not a name").kind(), ErrorKind::InvalidArgument);
    fs::write(stores::only_entry(&store).path(), "damaged").expect("it belongs to this test");
    assert!(get(&name).expect("damage is not an error").is_none());
}

/// Writer whose bytes can be read after it was moved.
#[derive(Clone, Default)]
struct SharedWriter(Arc<Mutex<Vec<u8>>>);

impl SharedWriter {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no writer panics").clone()
    }
}

impl AsyncWrite for SharedWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let some = &bytes[..bytes.len().min(1000)];
        self.0.lock().expect("no writer panics").extend_from_slice(some);
        Poll::Ready(Ok(some.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn an_exported_entry_can_be_imported_elsewhere() {
    let ((_from, from), (_to, to)) = (store_with(1), store_with(0));
    let (info, writer) = (stores::only_entry(&from), SharedWriter::default());
    let bytes = block_on(from.export(&info, writer.clone())).expect("it is intact");
    assert_eq!((bytes, writer.bytes()), (info.bytes(), entry(0).1));
    import(&to, (info.name(), writer.bytes())).expect("it can be written");
    let copy = fs::read(stores::only_entry(&to).path()).expect("it exists");
    assert_eq!(copy, fs::read(info.path()).expect("it exists"));
}

#[test]
fn an_entry_that_is_damaged_or_gone_is_not_exported() {
    let (_directory, store) = store_with(1);
    let (info, writer) = (stores::only_entry(&store), SharedWriter::default());
    let export = || block_on(store.export(&info, writer.clone())).map_err(|error| error.kind());
    fs::write(info.path(), "damaged").expect("it belongs to this test");
    assert_eq!(export(), Err(ErrorKind::InvalidArgument));
    fs::remove_file(info.path()).expect("it belongs to this test");
    assert_eq!(export(), Err(ErrorKind::Io));
    assert!(writer.bytes().is_empty(), "nothing is written");
}

#[test]
fn entries_are_verified_in_the_order_of_their_list() {
    let (_directory, store) = store_with(20);
    let listed = stores::entries(&store);
    fs::write(listed[7].path(), "damaged").expect("it belongs to this test");
    let verified: Vec<_> = block_on(store.verify().collect());
    let names = verified.iter().map(|(info, _)| info.name());
    assert!(names.eq(listed.iter().map(EntryInfo::name)));
    let whole = verified.iter().map(|(_, checked)| matches!(checked, EntryCheck::Whole(_)));
    assert!(whole.eq((0..20).map(|at| at != 7)));
}

#[test]
fn an_import_dropped_at_any_point_adds_all_of_an_entry_or_nothing() {
    for polls in 0.. {
        let (directory, store) = store_with(1);
        let (name, file) = entry(1);
        let ended = poll_up_to(polls, store.import(&name, Cursor::new(file.clone())));
        let entries = assert_is_whole(directory.path(), &store);
        assert!((1..=2).contains(&entries), "{entries} after {polls} polls");
        import(&store, (name, file)).expect("it can be written");
        assert_eq!(assert_is_whole(directory.path(), &store), 2, "after {polls} polls");
        if ended.is_some() {
            // The import waits for three calls: verifying the file, writing it, and changing the size hint.
            assert!(polls >= 3, "the import was dropped at a few points only");
            break;
        }
    }
}

#[test]
fn an_import_whose_reader_never_ends_can_be_dropped() {
    /// Reader that waits forever.
    struct Silent;

    impl AsyncRead for Silent {
        fn poll_read(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            _: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    }

    let (directory, store) = store_with(1);
    assert!(poll_up_to(10, store.import(&entry(1).0, Silent)).is_none());
    assert_eq!(assert_is_whole(directory.path(), &store), 1);
}

#[test]
fn a_collection_dropped_at_any_point_leaves_a_store_that_can_be_collected() {
    const ENTRIES: u8 = 6;
    const LEFT: usize = 3;
    for polls in 0.. {
        let (directory, _) = store_with(ENTRIES);
        let store = stores::open_with(&CacheConfig::at(directory.path()).max_bytes(20_000));
        let ended = poll_up_to(polls, store.collect(false));
        let entries = assert_is_whole(directory.path(), &store);
        assert!((LEFT..=ENTRIES.into()).contains(&entries), "{entries} after {polls} polls");
        // The lock of the dropped collection is freed in the background.
        wait_until(|| block_on(store.collect(false)).is_ok());
        assert_eq!(assert_is_whole(directory.path(), &store), LEFT, "after {polls} polls");
        if ended.is_some() {
            assert!(polls > 10, "the collection was dropped at a few points only");
            break;
        }
    }
}

#[test]
fn lists_that_are_dropped_half_way_leave_the_store_unchanged() {
    let (directory, store) = store_with(6);
    for items in 0..6 {
        let mut entries = store.entries();
        let mut results = store.verify();
        block_on(async {
            for _ in 0..items {
                entries.next().await.expect("there are more");
                results.next().await.expect("there are more");
            }
        });
        drop((entries, results));
        assert_eq!(assert_is_whole(directory.path(), &store), 6);
    }
}

#[test]
fn operations_that_are_not_polled_delay_no_others() {
    let (_directory, store) = store_with(6);
    let mut checks: Vec<_> = (0..32).map(|_| store.verify()).collect();
    for check in &mut checks {
        // Polled once, and kept.
        let _ = check.next().now_or_never();
    }
    let (sender, listed) = mpsc::channel();
    let other = store.clone();
    thread::spawn(move || sender.send(stores::entries(&other).len()));
    assert_eq!(listed.recv_timeout(HANGS), Ok(6));
    drop(checks);
}
