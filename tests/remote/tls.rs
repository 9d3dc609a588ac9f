//! Services over TLS, with a trusted or an untrusted certificate.

#![cfg(all(feature = "simulated", feature = "remote-redis", feature = "remote-webdav"))]

use std::path::Path;

use super::machines::Machine;
use super::machines::services::{CERTIFICATE, Redis, WebDav};
use super::warnings::LogCapture;
use support::children::{Child, Report, report, variable};
use support::test_name;
use tracing::Level;

/// A machine, as a process that trusts the certificates in its environment.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn machine() {
    let capture = LogCapture::begin();
    let machine = Machine::new();
    let (_, stats) = machine.build(machine.cache(&variable("KILN_TEST_REMOTE")), 1);
    report("compiles", stats.builds.compiles);
    report("hits", stats.remote.hits);
    report("misses", stats.remote.misses);
    report("errors", stats.remote.errors);
    let warnings = capture.messages(Level::WARN);
    let of_certificate = warnings.iter().filter(|message| message.contains("certificate"));
    report("warnings-of-certificates", of_certificate.count());
    report("warnings", warnings.len());
}

/// Checks that only a service with a trusted certificate is used.
fn assert_used_only_if_trusted(url: &str) {
    let nowhere = tempfile::tempdir().expect("there is room");
    let run = |file: &str, directory: &Path| -> Report {
        let directory = directory.to_str().expect("it is Unicode");
        let trusted = [("SSL_CERT_FILE", file), ("SSL_CERT_DIR", directory)];
        Child::start(&test_name!("machine"), trusted.into_iter().chain([("KILN_TEST_REMOTE", url)]))
            .report()
    };
    for (hits, misses) in [(0, 1), (1, 0)] {
        let report = run(CERTIFICATE, nowhere.path());
        assert_eq!((report["hits"], report["misses"]), (hits, misses), "{report:?}");
        assert_eq!((report["compiles"], report["errors"]), (misses, 0), "{report:?}");
        assert_eq!(report["warnings"], 0, "{report:?}");
    }
    // The second process trusts no certificates, so that some services have no client. The runtime starts
    // nevertheless.
    for directory in [Path::new("/etc/ssl/certs"), nowhere.path()] {
        let report = run("/dev/null", directory);
        assert_eq!((report["compiles"], report["errors"]), (1, 1), "{report:?}");
        assert!(report["warnings-of-certificates"] > 0, "{report:?}");
    }
}

#[test]
fn redis_is_used_only_with_a_trusted_certificate() {
    let Some(redis) = Redis::start_with_tls() else { return };
    assert_used_only_if_trusted(&format!("rediss://127.0.0.1:{}/kiln", redis.address().port()));
}

#[test]
fn webdav_is_used_only_with_a_trusted_certificate() {
    let Some(webdav) = WebDav::start_with_tls() else { return };
    assert_used_only_if_trusted(&webdav.url("hunter2"));
}
