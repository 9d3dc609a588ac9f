//! Marks of programs for which a process of this machine has asked the remote cache, so that the other processes do not.
//!
//! The marks are lines in the file of the program's build lock, after the [holder](super::holder). The process that
//! holds the lock writes them. A mark that cannot be written or read costs one more request.

use std::io::{self, SeekFrom};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_fs::File;
use futures::io::AsyncSeekExt;

use super::files;
use super::holder::HOLDER_BYTES;
use crate::digest::BuildKey;

/// Time for which a mark counts. The remote cache may have the program afterwards.
const FRESH: Duration = Duration::from_secs(60);

/// Marks in one file; further ones are not written.
const MAX_MARKS: usize = 64;

/// First word of a mark's line.
const WORD: &str = "asked";

/// Marks a program in the locked file of its build lock.
pub(super) async fn mark(file: &mut File, path: &Path, key: &BuildKey) {
    let now = milliseconds();
    let text = async_fs::read_to_string(path).await.unwrap_or_default();
    let line = format!("{WORD} {key} {now}");
    let fresh = text.lines().filter(|line| is_fresh(line, now)).take(MAX_MARKS - 1);
    let lines: String = fresh.chain([&*line]).map(|line| format!("{line}\n")).collect();
    if let Err(error) = write(file, &lines).await {
        tracing::debug!(%error, "a lock does not say that the remote cache was asked");
    }
}

/// Whether a program has a mark in the file of its build lock.
pub(super) async fn is_marked(path: &Path, key: &BuildKey) -> bool {
    let (now, mark) = (milliseconds(), format!("{WORD} {key} "));
    let text = async_fs::read_to_string(path).await.unwrap_or_default();
    text.lines().any(|line| line.starts_with(&mark) && is_fresh(line, now))
}

async fn write(file: &mut File, lines: &str) -> io::Result<()> {
    file.set_len(HOLDER_BYTES).await?;
    file.seek(SeekFrom::Start(HOLDER_BYTES)).await?;
    files::write(file, &[lines.as_bytes()]).await
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
    use std::fs;

    use futures::executor::block_on;

    use super::super::holder::Holder;
    use super::*;

    const KEYS: [BuildKey; 2] = [BuildKey([1; 32]), BuildKey([2; 32])];

    #[test]
    fn marks_stay_beside_the_holders() {
        let directory = tempfile::tempdir().expect("there is disk space");
        let path = directory.path().join("lock");
        let lock = async || {
            let mut file = files::open_own(&path, files::keeping).await.expect("it can be opened");
            Holder::write(&mut file).await;
            file
        };
        block_on(async {
            let mut file = lock().await;
            assert!(!is_marked(&path, &KEYS[0]).await);
            mark(&mut file, &path, &KEYS[0]).await;
            mark(&mut lock().await, &path, &KEYS[1]).await;
            lock().await;
            for key in &KEYS {
                assert!(is_marked(&path, key).await);
            }
            assert!(Holder::read(&path).await.is_some());
            for _ in 0..1_000 {
                mark(&mut file, &path, &KEYS[0]).await;
            }
        });
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
