//! Marks of programs for which a process of this machine has asked the remote cache, so that the other processes do not.
//!
//! The marks are lines in the file of the program's build lock, after the [holder](super::holder). The process that
//! holds the lock writes them. A mark that cannot be written or read costs one more request.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::holder::HOLDER_BYTES;
use crate::digest::BuildKey;

/// Time for which a mark counts. The remote cache may have the program afterwards.
const FRESH: Duration = Duration::from_secs(60);

/// Marks in one file; further ones are not written.
const MAX_MARKS: usize = 64;

/// First word of a mark's line.
const WORD: &str = "asked";

/// Marks a program in the locked file of its build lock. Blocks on the file.
pub(super) fn mark(file: &File, path: &Path, key: &BuildKey) {
    let now = milliseconds();
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = format!("{WORD} {key} {now}");
    let fresh = text.lines().filter(|line| is_fresh(line, now)).take(MAX_MARKS - 1);
    let lines: String = fresh.chain([&*line]).map(|line| format!("{line}\n")).collect();
    if let Err(error) = write(file, &lines) {
        tracing::debug!(%error, "a lock does not say that the remote cache was asked");
    }
}

/// Whether a program has a mark in the file of its build lock. Blocks on the file.
pub(super) fn is_marked(path: &Path, key: &BuildKey) -> bool {
    let (now, mark) = (milliseconds(), format!("{WORD} {key} "));
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().any(|line| line.starts_with(&mark) && is_fresh(line, now))
}

fn write(mut file: &File, lines: &str) -> io::Result<()> {
    file.set_len(HOLDER_BYTES)?;
    file.seek(SeekFrom::Start(HOLDER_BYTES))?;
    file.write_all(lines.as_bytes())
}

/// Whether a line is a mark that counts. One from the future comes from another setting of the clock.
fn is_fresh(line: &str, now: u64) -> bool {
    let mut words = line.split(' ');
    if words.next() != Some(WORD) {
        return false;
    }
    let time: Option<u64> = words.nth(1).and_then(|time| time.parse().ok());
    let age = time.and_then(|time| now.checked_sub(time));
    age.is_some_and(|age| Duration::from_millis(age) < FRESH)
}

/// Returns the time since 1970, in milliseconds.
fn milliseconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::holder::Holder;
    use super::*;

    const KEYS: [BuildKey; 2] = [BuildKey([1; 32]), BuildKey([2; 32])];

    #[test]
    fn marks_stay_beside_the_holders() {
        let directory = tempfile::tempdir().expect("there is disk space");
        let path = directory.path().join("lock");
        let lock = || {
            let options = File::options().create(true).write(true).truncate(false).open(&path);
            let file = options.expect("it can be opened");
            Holder::write(&file);
            file
        };
        let file = lock();
        assert!(!is_marked(&path, &KEYS[0]));
        mark(&file, &path, &KEYS[0]);
        mark(&lock(), &path, &KEYS[1]);
        lock();
        assert!(KEYS.iter().all(|key| is_marked(&path, key)));
        assert!(Holder::read(&path).is_some());
        for _ in 0..1_000 {
            mark(&file, &path, &KEYS[0]);
        }
        let bytes = fs::metadata(&path).expect("it exists").len();
        assert!(bytes < 8 << 10, "{bytes} bytes");
    }

    #[test]
    fn old_and_damaged_marks_do_not_count() {
        let [key, _] = KEYS;
        let now = milliseconds();
        let minute = 60_000;
        for (line, counts) in [
            (format!("asked {key} {now}"), true),
            (format!("asked {key} {}", now - minute / 2), true),
            (format!("asked {key} {}", now - minute), false),
            (format!("asked {key} {}", now + minute), false),
            (format!("asked {key}"), false),
            (format!("asked {key} now"), false),
            (String::new(), false),
        ] {
            assert_eq!(is_fresh(&line, now), counts, "{line}");
        }
    }
}
