//! Memory that is used while foreign bytes are read: a small multiple of their size.

use std::fs;

use kiln::{ErrorKind, Module};
use support::scripts;
use support::{SAXPY, builder, on_each_device_with};

use crate::{MEMORY, alone};

/// Returns an answer of a build child: a greeting and a frame with a header and `count` empty sections.
fn answer(header: &str, count: usize) -> Vec<u8> {
    let (version, protocol) = (env!("CARGO_PKG_VERSION"), 1u32);
    let mut body = (header.len() as u64).to_le_bytes().to_vec();
    body.extend_from_slice(header.as_bytes());
    body.resize(body.len() + count * size_of::<u64>(), 0);
    let mut bytes = b"KILN BUILD CHILD".to_vec();
    bytes.extend_from_slice(&protocol.to_le_bytes());
    bytes.push(version.len() as u8);
    bytes.extend_from_slice(version.as_bytes());
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(blake3::hash(&body).as_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

#[test]
fn reading_a_build_child_answer_uses_at_most_twice_its_size_in_memory() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("there is room");
    let (child, file) = (folder.path().join("child"), folder.path().join("answer"));
    scripts::place(&child, &format!("cat > /dev/null; cat {}", file.display()));
    let parameters = vec!["{}"; 4 << 20].join(",");
    let kernels = format!(r#"{{"name":"saxpy","parameters":[{parameters}]}}"#);
    let made = |kernels: &str| format!(r#"{{"Made":{{"log":"","kernels":[{kernels}]}}}}"#);
    for (what, bytes) in [
        ("empty sections", answer(&made(""), 4 << 20)),
        ("parameters of a kernel", answer(&made(&kernels), 1)),
    ] {
        let size = bytes.len();
        fs::write(&file, bytes).expect("there is room");
        let builder = || builder().build_child(&child);
        smol::block_on(on_each_device_with(builder, async |rt| {
            let module = Module::opencl_c(format!("// {what}\n{SAXPY}")).untrusted();
            let before = MEMORY.current_usage();
            MEMORY.reset_peak_usage();
            let error = rt.build(&module).await.expect_err(what);
            let peak = MEMORY.peak_usage().saturating_sub(before);
            assert_eq!(error.kind(), ErrorKind::BuildFailed, "{what}: {error}");
            assert!(error.to_string().contains("without an answer"), "{what}: {error}");
            assert!(peak <= 2 * size, "{what}: {peak} bytes for {size}");
        }));
    }
}
