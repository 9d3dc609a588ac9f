//! Tests of exporting programs from a cache and importing them.

use std::fs;
use std::io::Write;

use kiln::store::EntryCheck;
use serde_json::Value;
use tar::{Archive, Builder, EntryType, Header};

use crate::{Run, flip, on_filled_benches};

/// Returns the header of a file with this name, written as no library would write it.
fn header(name: &str, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(EntryType::Regular);
    header.set_size(size);
    header.set_cksum();
    header
}

fn names(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|refused| refused["name"].as_str().unwrap()).collect()
}

#[test]
fn the_binary_of_an_entry_can_be_extracted_and_loaded() {
    on_filled_benches(async |bench| {
        let entry = &bench.entries()[0];
        let key = entry.key().to_string();
        let EntryCheck::Whole(whole) = bench.store().check(entry).await else {
            panic!("it is whole")
        };
        let text = bench.text(["cache", "extract", &key, "-o", "binary"]);
        assert!(text.contains("binary"), "{text}");
        assert_eq!(fs::read(bench.path("binary")).unwrap(), whole.payload());
        let output = bench.json(["cache", "extract", &key, "--output", "binary"]);
        assert_eq!(output["bytes"], whole.payload().len());
        let piped = bench.command(["cache", "extract", &key]).output().unwrap();
        assert_eq!(piped.stdout, whole.payload());

        let kernels = &bench.build("binary", &[])["kernels"];
        assert_eq!(kernels.as_array().unwrap().len(), whole.record().kernels.len());

        flip(entry.path(), 0);
        bench.run(["cache", "extract", &key]).ended(1).says(&["checksum"]);
    });
}

#[test]
fn a_bundle_transfers_programs_to_another_cache() {
    on_filled_benches(async |bench| {
        let entries = bench.entries();
        let output = bench.json(["cache", "export", "all.tar"]);
        assert_eq!(output["exported"], 2);

        let mut bundle = Archive::new(fs::File::open(bench.path("all.tar")).unwrap());
        let inside: Vec<_> = bundle
            .entries()
            .unwrap()
            .map(|file| file.unwrap().path().unwrap().display().to_string())
            .collect();
        let mut expected: Vec<_> = entries.iter().map(|entry| entry.name()).collect();
        expected.sort();
        assert_eq!(inside, expected, "other tools can list the bundle");

        let other = ["--cache-dir", "other"];
        let imported = bench.json(["cache", "import", "all.tar"].iter().chain(&other));
        assert_eq!(imported["imported"].as_array().unwrap().len(), 2);
        assert_eq!(imported["refused"], Value::Array(Vec::new()));
        assert_eq!(bench.build("saxpy.cl", &other)["origin"], "disk");

        // One entry is exported and imported through a pipe.
        let key = entries[0].key().to_string();
        let piped = bench.command(["cache", "export", "-", &key[..10]]).output().unwrap();
        fs::write(bench.path("one.tar"), &piped.stdout).unwrap();
        let stdin = fs::File::open(bench.path("one.tar")).unwrap();
        let mut command = bench.command(["cache", "import", "-", "--cache-dir", "third", "--json"]);
        let imported = Run::of(command.stdin(stdin).output().unwrap()).ended(0).json();
        assert_eq!(imported["imported"], serde_json::json!([key]));
        let text = bench.text(["cache", "export", "one.tar", &key, &key]);
        assert!(text.contains("1 entry"), "{text}");
        assert!(bench.text(["cache", "import", "one.tar"]).contains("1 entry imported"));
    });
}

#[test]
fn damaged_entries_are_not_exported() {
    on_filled_benches(async |bench| {
        let damaged = &bench.entries()[0];
        flip(damaged.path(), 0);
        let run = bench.run(["cache", "export", "all.tar", "--json"]).ended(1);
        assert_eq!(run.json()["exported"], 1);
        assert_eq!(names(&run.json()["refused"]), [damaged.name()]);
        run.says(&[&damaged.name(), "checksum"]);
    });
}

#[test]
fn invalid_entries_are_refused_by_name_and_valid_ones_are_imported() {
    on_filled_benches(async |bench| {
        let [first, second] = &*bench.entries() else { panic!("there are two") };
        let [whole, mut flipped] = [first, second].map(|entry| fs::read(entry.path()).unwrap());
        flipped[0] ^= 1;
        let mut bundle = Builder::new(fs::File::create(bench.path("bad.tar")).unwrap());
        let outside = format!("../../../{}", first.name());
        let absolute = bench.path("absolute").display().to_string();
        let link = {
            let mut link = header("link", 0);
            link.set_entry_type(EntryType::Symlink);
            link.set_link_name("/etc/passwd").unwrap();
            link.set_cksum();
            link
        };
        let bad = [
            (&*second.name(), &flipped),
            (&outside, &whole),
            (&absolute, &whole),
            (&second.name(), &whole),
            ("v1/state", &whole),
            ("\u{1b}[2J", &whole),
        ];
        for (name, bytes) in bad {
            bundle.append(&header(name, bytes.len() as u64), &**bytes).unwrap();
        }
        bundle.append(&link, &[][..]).unwrap();
        let mut folder = header("0123456789abcdef/", 0);
        folder.set_entry_type(EntryType::Directory);
        folder.set_cksum();
        bundle.append(&folder, &[][..]).unwrap();
        // The name as `tar -C v1 -cf FILE .` writes it.
        let name = format!("./{}", first.name());
        bundle.append(&header(&name, whole.len() as u64), &*whole).unwrap();
        bundle.into_inner().unwrap();

        let run = bench.run(["cache", "import", "bad.tar", "--cache-dir", "other", "--json"]);
        let run = run.ended(1).says(&["checksum", "another key", "link: it is not a regular file"]);
        assert!(!run.errors.contains('\u{1b}'), "names cannot control the terminal: {run:?}");
        let expected: Vec<_> = bad.iter().map(|(name, _)| *name).chain(["link"]).collect();
        assert_eq!(names(&run.json()["refused"]), expected);
        assert_eq!(run.json()["imported"], serde_json::json!([first.key().to_string()]));
        let mut there: Vec<_> = fs::read_dir(bench.folder.path())
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        there.sort();
        let expected = ["bad.tar", "broken.cl", "cache", "other", "saxpy.cl", "stages.cl"];
        assert_eq!(there, expected, "nothing is written elsewhere");
        let text = bench.run(["cache", "import", "bad.tar"]).ended(1).fits().out;
        assert!(text.contains("1 entry imported, 7 refused"), "{text}");
    });
}

/// The import runs with little memory where the system can limit it.
#[test]
fn sizes_declared_in_a_bundle_are_not_allocated() {
    on_filled_benches(async |bench| {
        let entry = &bench.entries()[0];
        let whole = fs::read(entry.path()).unwrap();
        for (size, kind) in [
            (1 << 33, EntryType::Regular),
            ((1 << 33) - 1, EntryType::GNULongName),
            ((1 << 33) - 1, EntryType::XHeader),
            (1 << 62, EntryType::Regular),
            (u64::MAX, EntryType::Regular),
        ] {
            let mut file = fs::File::create(bench.path("huge.tar")).unwrap();
            file.write_all(header(&entry.name(), whole.len() as u64).as_bytes()).unwrap();
            file.write_all(&whole).unwrap();
            file.write_all(&vec![0; whole.len().next_multiple_of(512) - whole.len()]).unwrap();
            let mut huge = header(&entry.name(), size);
            huge.set_entry_type(kind);
            huge.set_cksum();
            file.write_all(huge.as_bytes()).unwrap();
            file.write_all(b"and not much more").unwrap();

            let mut command = bench.command(["cache", "import", "huge.tar", "--json"]);
            limit_memory(&mut command);
            let run = Run::of(command.output().unwrap()).ended(1);
            assert_eq!(run.json()["imported"], serde_json::json!([entry.key().to_string()]));
        }
        fs::write(bench.path("text.tar"), "this is no bundle ".repeat(100)).unwrap();
        bench.run(["cache", "import", "text.tar"]).ended(1).says(&["text.tar"]);
        bench.run(["cache", "import", "absent.tar"]).ended(1).says(&["absent.tar"]);
    });
}

#[cfg(target_os = "linux")]
fn limit_memory(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let limit = || {
        let most = libc::rlimit { rlim_cur: 1 << 30, rlim_max: 1 << 30 };
        // SAFETY: the structure is alive.
        match unsafe { libc::setrlimit(libc::RLIMIT_AS, &most) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(limit) };
}

#[cfg(not(target_os = "linux"))]
fn limit_memory(_: &mut std::process::Command) {}

#[cfg(target_os = "linux")]
#[test]
fn named_pipes_are_refused_without_blocking() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    on_filled_benches(async |bench| {
        let pipe = bench.path("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let key = bench.entries()[0].key().to_string();
        for arguments in [
            &["cache", "import", "pipe"][..],
            &["cache", "export", "pipe"],
            &["cache", "extract", &key, "--output", "pipe"],
            &["build", "pipe"],
        ] {
            let says = ["pipe", "it is a named pipe, not a regular file"];
            bench.run(arguments).ended(1).says(&says);
        }
        bench.run(["cache", "extract", &key, "--output", "/dev/null"]).ended(0);
    });
}
