//! The remote cache: machines that share programs through a service.

#[cfg(feature = "remote-opendal")]
mod devices;
#[cfg(feature = "remote-redis")]
mod faults;
#[cfg(feature = "remote-redis")]
mod fleet;
#[cfg(any(
    feature = "remote-redis",
    all(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav")
))]
mod machines;
#[cfg(feature = "remote-redis")]
mod redis;
#[cfg(all(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav"))]
mod services;
#[cfg(feature = "remote-redis")]
mod shared_compiles;
#[cfg(feature = "remote-redis")]
mod slow;
#[cfg(all(feature = "cli", feature = "opencl", feature = "remote-redis", target_os = "linux"))]
mod soak;
#[cfg(all(feature = "remote-redis", feature = "remote-webdav"))]
mod tls;
#[cfg(feature = "remote-redis")]
mod trust;
#[cfg(feature = "remote-opendal")]
#[cfg_attr(
    not(feature = "remote-redis"),
    allow(dead_code, reason = "the tests of services alone read the messages")
)]
mod warnings;
