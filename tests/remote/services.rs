//! Services other than Redis: S3, WebDAV, a directory, and services that an application provides.

#![cfg(all(
    feature = "simulated",
    feature = "remote-s3",
    feature = "remote-webdav",
    feature = "remote-fs"
))]

use std::net::SocketAddr;

use super::machines;
use super::machines::flood::{Flood, Reply};
use super::machines::proxy::{Mode, Proxy};
use super::machines::services::{S3, WebDav};
use super::machines::{Machine, PATIENT, eventually, large_module, module};
use super::warnings::LogCapture;
use futures::executor::block_on;
use kiln::build::Origin;
use kiln::remote::RemoteAccess;
use kiln::remote::opendal::{Operator, services::Memory};
use kiln::{CacheConfig, ErrorKind, Module, Runtime};
use support::share;
use tracing::Level;

/// Returns the address of a service through a proxy.
fn through_proxy(proxy: &Proxy, service: SocketAddr, url: &str) -> String {
    url.replace(&service.to_string(), &proxy.address.to_string())
}

/// Returns the requests to a service by a machine that builds a program, and by a machine that gets it from the
/// service.
fn requests(service: SocketAddr, url: &str) -> Vec<String> {
    let proxy = Proxy::to(service);
    let url = through_proxy(&proxy, service, url);
    let (first, second) = (Machine::new(), Machine::new());
    let (origin, stats) = first.build(first.cache(&url), 1);
    assert_eq!((origin, stats.remote.misses, stats.remote.writes), (Origin::Compiled, 1, 1));
    let (origin, stats) = second.build(second.cache(&url), 1);
    assert_eq!((origin, stats.remote.hits, stats.builds.compiles), (Origin::Remote, 1, 0));
    proxy.requests()
}

#[test]
fn s3_objects_are_read_and_written_with_one_request_each() {
    let _alone = LogCapture::begin();
    let Some(s3) = S3::start() else { return };
    let requests = requests(s3.address(), &s3.url());
    let methods: Vec<_> = requests.iter().filter_map(|request| request.split(' ').next()).collect();
    assert_eq!(methods, ["GET", "PUT", "GET"], "{requests:?}");
    assert!(requests.iter().all(|request| request.contains("/kiln/programs/v1/")), "{requests:?}");
}

#[test]
fn s3_transfers_large_objects_completely() {
    let _alone = LogCapture::begin();
    let Some(s3) = S3::start() else { return };
    let build = || {
        let machine = Machine::new();
        block_on(async {
            let rt = machine.start(machine.cache(&s3.url())).await;
            let program = rt.build(&large_module(1, 9 << 20)).await.expect("it builds");
            rt.drain().await;
            (program.origin(), program.binary().expect("it has one"))
        })
    };
    let ((first, compiled), (second, sent)) = (build(), build());
    assert_eq!((first, second), (Origin::Compiled, Origin::Remote));
    assert!(compiled == sent, "the programs differ");
}

#[test]
fn a_program_is_compiled_if_its_s3_object_is_truncated() {
    let _alone = LogCapture::begin();
    let Some(s3) = S3::start() else { return };
    let proxy = Proxy::to(s3.address());
    let url = through_proxy(&proxy, s3.address(), &s3.url());
    let build = |url: &str| {
        let machine = Machine::new();
        block_on(async {
            let rt = machine.start(machine.cache(url)).await;
            let program = rt.build(&large_module(1, 100_000)).await.expect("it builds");
            rt.drain().await;
            (program.origin(), rt.stats())
        })
    };
    build(&s3.url());
    proxy.set(Mode::Truncates(2_000));
    let (origin, stats) = build(&url);
    assert_eq!((origin, stats.remote.errors, stats.remote.hits), (Origin::Compiled, 1, 0));
}

#[test]
fn an_endless_response_is_rejected() {
    let _alone = LogCapture::begin();
    for beginning in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 500 Internal Server Error\r\n\r\n"] {
        let webdav = Flood::start(move |_, request| match request {
            _ if request.starts_with("GET ") => Reply::Endless(beginning),
            _ => Reply::Text("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_owned()),
        });
        let machine = Machine::new();
        let cache = machine.cache(&format!("webdav+http://{}/kiln", webdav.address));
        let (origin, stats) = machine.build(cache.remote_max_bytes(1 << 20), 1);
        let unusable = stats.remote.errors + stats.remote.refused;
        assert_eq!((origin, unusable), (Origin::Compiled, 1), "{beginning}: {stats:?}");
        let sent = webdav.sent();
        assert!(sent < 128 << 20, "{beginning}: {sent} bytes");
    }
}

#[test]
fn a_missing_bucket_is_reported_once_per_operation() {
    let Some(s3) = S3::start() else { return };
    let capture = LogCapture::begin();
    let machine = Machine::new();
    let url = s3.url().replace("s3://kiln/", "s3://elsewhere/");
    block_on(async {
        let rt = machine.start(machine.cache(&url)).await;
        for number in 0..10 {
            rt.build(&module(number)).await.expect("it builds");
            rt.drain().await;
        }
        assert_eq!((rt.stats().builds.compiles, rt.stats().remote.writes), (10, 0));
    });
    // Concurrent tests cause warnings about other services.
    let mut warnings = capture.messages(Level::WARN);
    warnings.retain(|warning| warning.contains("s3://elsewhere"));
    assert!(
        !warnings.is_empty() && warnings.len() <= 2,
        "one of reads, one of writes: {warnings:#?}"
    );
    assert!(!format!("{warnings:?}").contains("hunter2"), "{warnings:#?}");
}

#[test]
fn webdav_objects_are_read_with_one_request() {
    let _alone = LogCapture::begin();
    let Some(webdav) = WebDav::start() else { return };
    let requests = requests(webdav.address(), &webdav.url("hunter2"));
    let of = |method: &str| requests.iter().filter(|request| request.starts_with(method)).count();
    assert_eq!(of("GET /kiln/v1/"), 2, "one a machine: {requests:?}");
    // Directories are created before the first object in them.
    assert_eq!((of("GET "), of("PUT ")), (2, 1), "{requests:?}");
}

#[test]
fn a_password_rejected_by_webdav_is_reported_once_per_operation() {
    let Some(webdav) = WebDav::start() else { return };
    let capture = LogCapture::begin();
    let machine = Machine::new();
    block_on(async {
        let rt = machine.start(machine.cache(&webdav.url("swordfish"))).await;
        for number in 0..10 {
            rt.build(&module(number)).await.expect("it builds");
            rt.drain().await;
        }
        let stats = rt.stats();
        assert_eq!((stats.builds.compiles, stats.remote.writes, stats.remote.misses), (10, 0, 0));
    });
    let mut warnings = capture.messages(Level::WARN);
    warnings.retain(|warning| warning.contains(&webdav.address().to_string()));
    assert!(
        !warnings.is_empty() && warnings.len() <= 2,
        "one of reads, one of writes: {warnings:#?}"
    );
    assert!(!format!("{warnings:?}").contains("swordfish"), "{warnings:#?}");
}

#[test]
fn a_directory_serves_a_fleet_and_contains_no_temporary_files() {
    let _alone = LogCapture::begin();
    let share = tempfile::tempdir().expect("there is room");
    let url = share::address(share.path());
    for origin in [Origin::Compiled, Origin::Remote] {
        let machine = Machine::new();
        assert_eq!(machine.build(machine.cache(&url), 1).0, origin);
    }
    let left = std::fs::read_dir(share.path().join("tmp")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "no unfinished file is left");
}

#[test]
fn a_directory_is_used_once_it_can_be_created() {
    let parent = tempfile::tempdir().expect("there is room");
    let in_the_way = parent.path().join("mount");
    std::fs::write(&in_the_way, "no directory").unwrap();
    let url = share::address(&in_the_way.join("kiln"));
    let capture = LogCapture::begin();
    let machine = Machine::new();
    block_on(async {
        let rt = machine.start(machine.cache(&url)).await;
        let program = rt.build(&module(0)).await.expect("it builds without the service");
        machines::assert_right(&rt, &program, 0).await;
        rt.drain().await;
        assert_eq!((rt.stats().remote.errors, rt.stats().remote.writes), (1, 0));
        std::fs::remove_file(&in_the_way).unwrap();
        let mut number = 1;
        eventually("it is written to", async || {
            rt.build(&module(number % 100)).await.expect("it builds");
            number += 1;
            rt.drain().await;
            rt.stats().remote.writes > 0
        })
        .await;
    });
    let mut warnings = capture.messages(Level::WARN);
    warnings.retain(|warning| warning.contains("remote: fs://"));
    assert_eq!(warnings.len(), 2, "one of reads, one of writes: {warnings:#?}");
}

#[test]
fn a_read_only_directory_is_not_created() {
    // The service logs a warning, so no other test may record the log meanwhile.
    let _alone = LogCapture::begin();
    let parent = tempfile::tempdir().expect("there is room");
    let (share, writer, reader) = (parent.path().join("kiln"), Machine::new(), Machine::new());
    let url = share::address(&share);
    let read_only = |machine: &Machine| machine.cache(&url).remote_access(RemoteAccess::ReadOnly);
    let (origin, stats) = reader.build(read_only(&reader), 1);
    assert_eq!((origin, stats.remote.errors, share.exists()), (Origin::Compiled, 1, false));
    writer.build(writer.cache(&url), 2);
    std::fs::remove_dir(share.join("tmp")).expect("it is there, and empty");
    assert_eq!(reader.build(read_only(&reader), 2).0, Origin::Remote);
    assert!(!share.join("tmp").exists());
}

#[test]
fn an_application_can_provide_its_own_operator() {
    let _alone = LogCapture::begin();
    let operator = Operator::new(Memory::default()).expect("it is right");
    for origin in [Origin::Compiled, Origin::Remote] {
        let machine = Machine::new();
        let cache = CacheConfig::at(machine.disk.path()).remote_operator(operator.clone());
        let cache = cache.remote_budget(PATIENT).remote_timeout(PATIENT);
        assert_eq!(machine.build(cache, 1).0, origin);
    }
}

#[test]
fn objects_of_linked_programs_are_shared_and_requested_only_if_needed() {
    let _alone = LogCapture::begin();
    let operator = Operator::new(Memory::default()).expect("it is right");
    let library = Module::opencl_c("uint two(uint x) { return 2 * x; }").exporting(["two"]);
    let application = |number: u32| {
        let source = format!(
            "uint two(uint x);\nkernel void write_{number}(global uint *x) {{ x[0] = two(1); }}"
        );
        Module::opencl_c(source).importing(["two"])
    };
    let build = |number: u32| {
        let machine = Machine::new();
        let cache = CacheConfig::at(machine.disk.path()).remote_operator(operator.clone());
        block_on(async {
            let cache = cache.remote_budget(PATIENT).remote_timeout(PATIENT);
            let rt = machine.start(cache).await;
            rt.register(&library).expect("it exports");
            let program = rt.build(&application(number)).await.expect("it builds");
            rt.drain().await;
            (program.origin(), rt.stats())
        })
    };
    let (origin, stats) = build(1);
    assert_eq!((origin, stats.builds.compiles, stats.builds.links), (Origin::Compiled, 2, 1));
    assert_eq!((stats.remote.misses, stats.remote.writes), (3, 3));
    let (origin, stats) = build(1);
    assert_eq!((origin, stats.builds.compiles, stats.builds.links), (Origin::Remote, 0, 0));
    assert_eq!((stats.remote.hits, stats.remote.misses), (1, 0), "objects are not needed");
    let (origin, stats) = build(2);
    assert_eq!((origin, stats.builds.compiles, stats.builds.links), (Origin::Compiled, 1, 1));
    assert_eq!((stats.remote.hits, stats.remote.misses), (1, 2), "the library is there");
}

#[test]
fn an_invalid_address_is_an_error_at_startup() {
    let _alone = LogCapture::begin();
    for url in ["nonsense", "gopher://host/", "s3://?region=x", "fs://host/directory"] {
        let builder = Runtime::builder().simulator(&machines::simulator());
        let started = block_on(builder.cache(CacheConfig::memory_only().remote(url)).build());
        let error = started.expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains("remote cache's address"), "{error}");
    }
}
