//! [OpenDAL](https://opendal.apache.org) operators as remote caches, with the feature `remote-opendal`.
//!
//! **This module follows the versions of OpenDAL**, which has not reached 1.0: a minor version of Kiln
//! may raise the version of OpenDAL, and its API, and the minimum version of Rust that OpenDAL has (1.91
//! at present). No other public item of Kiln has a type of OpenDAL in it. Applications that name a
//! service by its [address](crate::CacheConfig::remote) are not affected.
//!
//! The module re-exports all of OpenDAL, so that an application uses the version that fits:
//!
//! ```
//! use kiln::CacheConfig;
//! use kiln::remote::opendal::{Operator, services::Memory};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let operator = Operator::new(Memory::default())?;
//! let cache = CacheConfig::new().remote_operator(operator);
//! # let _ = cache;
//! # Ok(())
//! # }
//! ```

#[cfg(any(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav"))]
mod addresses;
mod client;

pub use ::opendal::*;

use super::objects::Objects;

/// An operator for [`CacheConfig::remote_operator`](crate::CacheConfig::remote_operator), converted from an
/// [`Operator`].
///
/// # Examples
///
/// ```
/// use kiln::CacheConfig;
/// use kiln::remote::opendal::{Operator, RemoteOperator, services::Memory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let operator = RemoteOperator::from(Operator::new(Memory::default())?);
/// let cache = CacheConfig::new().remote_operator(operator);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RemoteOperator(Operator);

impl From<Operator> for RemoteOperator {
    fn from(operator: Operator) -> Self {
        Self(operator)
    }
}

impl RemoteOperator {
    /// Returns the name for messages, without secrets.
    pub(super) fn name(&self) -> String {
        let info = self.0.info();
        format!("{}:{}{}", info.scheme(), info.name(), info.root())
    }

    pub(super) fn into_objects(self) -> Box<dyn Objects> {
        Box::new(client::Client::Ready(self.0))
    }
}

/// Returns access to the objects at an address. Connects to nothing.
#[cfg(any(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav"))]
pub(super) fn locate(
    address: &super::url::ServiceUrl,
    settings: &super::settings::Settings,
) -> crate::error::Result<Box<dyn Objects>> {
    Ok(Box::new(addresses::locate(address, settings)?))
}
