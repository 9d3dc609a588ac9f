//! The remote cache: machines that share programs through a service.

#[cfg(feature = "remote-opendal")]
mod devices;
#[cfg(feature = "remote-redis")]
mod faults;
#[cfg(feature = "remote-redis")]
mod fleet;
#[cfg(feature = "remote")]
mod machines;
#[cfg(feature = "remote-redis")]
mod redis;
#[cfg(all(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav"))]
mod services;
#[cfg(all(feature = "remote-redis", feature = "remote-webdav"))]
mod tls;
#[cfg(feature = "remote-redis")]
mod trust;
