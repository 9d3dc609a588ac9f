//! Tests of the files that belong to a driver's compiler.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::elf::{self, Library};
use super::linux::describe;
use crate::backend::loaded;
use crate::device::CompilerFiles::{self, Beside, Libraries};

/// Library in the format ELF, as far as it is read.
#[derive(Clone, Default)]
struct Made {
    build_id: Option<[u8; 20]>,
    needed: Vec<&'static str>,
    runpath: Option<&'static str>,
}

/// Offset and address of everything behind the headers.
const BODY: u64 = 0x200;

impl Made {
    fn with_id(id: u8) -> Self {
        Self { build_id: Some([id; 20]), ..Self::default() }
    }

    fn needing(self, needed: &[&'static str]) -> Self {
        Self { needed: needed.to_vec(), ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        let (mut strings, mut dynamic) = (vec![0], Vec::new());
        let mut add = |tag: u64, text: &str| {
            dynamic.extend([tag, strings.len() as u64]);
            strings.extend(text.bytes().chain([0]));
        };
        self.needed.iter().for_each(|name| add(1, name));
        if let Some(folders) = self.runpath {
            add(29, folders);
        }
        let mut note = Vec::new();
        if let Some(id) = self.build_id {
            // Another note comes first, with lengths that are padded.
            note.extend([5u32, 1, 7].map(u32::to_ne_bytes).concat());
            note.extend(b"Test\0\0\0\0x\0\0\0");
            note.extend([4u32, 20, 3].map(u32::to_ne_bytes).concat());
            note.extend([b"GNU\0", &id[..]].concat());
        }
        let strings_at = BODY + note.len() as u64;
        dynamic.extend([5, strings_at, 10, strings.len() as u64, 0, 0]);
        let dynamic: Vec<u8> = dynamic.into_iter().flat_map(u64::to_ne_bytes).collect();
        let dynamic_at = strings_at + strings.len() as u64;
        let end = dynamic_at + dynamic.len() as u64;

        let mut bytes = b"\x7fELF\x02".to_vec();
        bytes.push(if cfg!(target_endian = "little") { 1 } else { 2 });
        bytes.resize(64, 0);
        bytes[18..20].copy_from_slice(&62u16.to_ne_bytes());
        bytes[32..40].copy_from_slice(&64u64.to_ne_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_ne_bytes());
        bytes[56..58].copy_from_slice(&3u16.to_ne_bytes());
        for (kind, at, end) in
            [(1u32, BODY, end), (2, dynamic_at, end), (4, BODY, BODY + note.len() as u64)]
        {
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 4]);
            for number in [at, at, at, end - at, end - at, 8] {
                bytes.extend(number.to_ne_bytes());
            }
        }
        bytes.resize(BODY as usize, 0);
        bytes.extend([note, strings, dynamic].concat());
        bytes
    }
}

fn read(bytes: &[u8]) -> std::io::Result<Library> {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    elf::read(&file)
}

/// Folder with a driver that needs two libraries, and opens two more and a file late.
struct Driver {
    folder: tempfile::TempDir,
}

const LATE: &[CompilerFiles] = &[Libraries("liblate"), Beside("../share", "kernel-")];

impl Driver {
    fn new() -> Self {
        let driver = Self { folder: tempfile::tempdir().unwrap() };
        let library = Made { runpath: Some("/nowhere:$ORIGIN"), ..Made::with_id(1) };
        fs::create_dir_all(driver.at("driver")).unwrap();
        fs::create_dir_all(driver.at("share")).unwrap();
        fs::create_dir_all(driver.at("other")).unwrap();
        driver.put("driver/libdriver.so", &library.needing(&["libbeside.so", "libabsent.so"]));
        driver.put("driver/libbeside.so", &Made::with_id(2));
        driver.put("driver/libunrelated.so", &Made::with_id(3));
        let late = Made { runpath: Some("${ORIGIN}/../other"), ..Made::with_id(4) };
        driver.put("driver/liblate.so.1", &late.needing(&["libLLVM-99.so", "libother.so"]));
        driver.put("other/libLLVM-99.so", &Made::with_id(5));
        driver.put("other/libother.so", &Made::with_id(6));
        fs::write(driver.at("share/kernel-a.bc"), "bitcode").unwrap();
        fs::write(driver.at("share/other-a.bc"), "bitcode").unwrap();
        driver
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, library: &Made) {
        fs::write(self.at(name), library.bytes()).unwrap();
    }

    fn described(&self) -> String {
        describe(&self.at("driver/libdriver.so"), LATE)
    }

    /// Returns whether the description changes with the file.
    fn covers(&self, name: &str) -> bool {
        let before = self.described();
        let contents = fs::read(self.at(name)).unwrap();
        match read(&contents) {
            Ok(_) => self.put(name, &Made::with_id(77)),
            Err(_) => fs::write(self.at(name), [&contents[..], b"more"].concat()).unwrap(),
        }
        let changed = self.described() != before;
        fs::write(self.at(name), contents).unwrap();
        changed
    }
}

#[test]
fn properties_of_a_library_are_read() {
    let made =
        Made { runpath: Some("$ORIGIN"), ..Made::with_id(9).needing(&["liba.so", "libb.so"]) };
    let library = read(&made.bytes()).unwrap();
    let expected = Library {
        machine: 62,
        build_id: Some(vec![9; 20]),
        needed: vec!["liba.so".to_owned(), "libb.so".to_owned()],
        rpath: None,
        runpath: Some("$ORIGIN".to_owned()),
    };
    assert_eq!(library, expected);
    assert_eq!(read(&Made::default().bytes()).unwrap().build_id, None);
}

#[test]
fn libraries_of_the_system_are_read() {
    let own = loaded::libraries().into_iter().map(|library| library.path);
    let libraries: Vec<_> = own.filter(|path| path.is_file()).collect();
    assert!(!libraries.is_empty(), "a program uses the C library");
    for path in libraries {
        let library = elf::read(&File::open(&path).unwrap()).unwrap();
        let mut bytes = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
        let has = |needle: &[u8]| bytes.windows(needle.len()).any(|part| part == needle);
        if let Some(id) = &library.build_id {
            assert!(has(&[&b"GNU\0"[..], id].concat()), "{}", path.display());
        }
        for name in &library.needed {
            assert!(has(&[name.as_bytes(), b"\0"].concat()), "{}: {name}", path.display());
        }
    }
}

#[test]
fn damaged_libraries_are_refused_or_read_differently() {
    let whole = Made { runpath: Some("$ORIGIN"), ..Made::with_id(9).needing(&["liba.so"]) }.bytes();
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "cut to {length} bytes");
    }
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            // Neither a panic nor memory for what a damaged length claims.
            let _ = read(&bytes);
        }
    }
    assert!(read(b"not a library").is_err());
}

#[test]
fn files_of_the_compiler_are_covered_and_others_are_not() {
    let driver = Driver::new();
    for covered in [
        "driver/libdriver.so",
        "driver/libbeside.so",
        "driver/liblate.so.1",
        "other/libLLVM-99.so",
        "share/kernel-a.bc",
    ] {
        assert!(driver.covers(covered), "{covered} is missing: {}", driver.described());
    }
    for other in ["driver/libunrelated.so", "other/libother.so", "share/other-a.bc"] {
        assert!(!driver.covers(other), "{other} is covered: {}", driver.described());
    }
    let described = driver.described();
    for part in ["libdriver.so 0101010101010101", "libLLVM-99.so 0505", "kernel-a.bc 7@"] {
        assert!(described.contains(part), "{described}");
    }
}

#[test]
fn files_that_appear_or_vanish_change_the_description() {
    let driver = Driver::new();
    let before = driver.described();
    for name in ["share/kernel-b.bc", "driver/liblate-more.so"] {
        driver.put(name, &Made::with_id(8));
        assert_ne!(driver.described(), before, "{name}");
        fs::remove_file(driver.at(name)).unwrap();
        assert_eq!(driver.described(), before);
    }
    fs::remove_file(driver.at("driver/liblate.so.1")).unwrap();
    assert!(!driver.described().contains("liblate"));
    assert_eq!(describe(&driver.at("driver/libabsent.so"), LATE), "");
}

#[test]
fn without_a_build_id_the_time_of_a_file_counts() {
    let driver = Driver::new();
    driver.put("driver/libbeside.so", &Made::default());
    let before = driver.described();
    assert_eq!(driver.described(), before);
    let set_age = |name: &str, seconds| {
        let time = SystemTime::now() - Duration::from_secs(seconds);
        File::options().write(true).open(driver.at(name)).unwrap().set_modified(time).unwrap();
    };
    set_age("driver/libbeside.so", 3600);
    let later = driver.described();
    assert_ne!(later, before);
    set_age("share/kernel-a.bc", 7200);
    assert_ne!(driver.described(), later);
    // A build id is the same wherever the library was installed.
    let later = driver.described();
    set_age("driver/libdriver.so", 3600);
    assert_eq!(driver.described(), later);
}

#[test]
fn a_driver_that_is_a_link_is_found_beside_its_file() {
    let driver = Driver::new();
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("libdriver.so");
    symlink(driver.at("driver/libdriver.so"), &link).unwrap();
    let described = describe(&link, LATE);
    assert!(described.contains("kernel-a.bc"), "{described}");
    assert!(described.contains("libdriver.so 0101"), "{described}");
}

#[test]
fn what_is_loaded_meanwhile_does_not_matter() {
    let late = [Libraries("libc.so")];
    let this = loaded::libraries().into_iter().map(|library| library.path);
    for path in this.filter(|path| path.is_file()) {
        let before = describe(&path, &late);
        // Any library that is not loaded yet stands for a compiler.
        let other = ["libresolv.so.2", "libutil.so.1", "libnsl.so.1"];
        // SAFETY: the C library's own libraries have no initializers of consequence.
        let opened = other.map(|name| unsafe { libloading::Library::new(name) });
        assert_eq!(describe(&path, &late), before, "{}", Path::new(&path).display());
        drop(opened);
    }
}
