//! Services over HTTP, with an HTTP client of their own whose responses are limited in size.

use ::http::{Request, Response};
use ::opendal::{
    Buffer, Configurator, Error, ErrorKind, HttpBody, HttpTransport, HttpTransporter, Operator,
    Result,
};
use futures::StreamExt;
use opendal_http_transport_reqwest::ReqwestTransport;

use super::super::client::{Client, Deferred};
use crate::cache::remote::settings::Settings;
use crate::cache::remote::url::address_error;

/// Size in bytes of the largest response that is not an object: lists of objects and errors, which OpenDAL
/// reads into memory as a whole.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Returns access to a service over HTTP. It is ready at once if the machine has what an HTTP client needs,
/// such as certificates. Otherwise it is made when it is first needed.
pub(super) fn client(
    config: impl Configurator + Clone + Send + Sync,
    settings: &Settings,
) -> crate::error::Result<Client> {
    let max_bytes = settings.max_bytes.max(MAX_TEXT_BYTES);
    let make = move |client| {
        let operator = Operator::from_config(config.clone())?;
        // OpenDAL's own client is shared by the whole process, and its connections belong to the runtime
        // that opened them. This one ends with the worker's runtime.
        let transport = LimitedTransport { transport: ReqwestTransport::new(client), max_bytes };
        let context = operator.base_context().with_http_transport(HttpTransporter::new(transport));
        Ok(operator.with_context(context))
    };
    match http_client() {
        Ok(client) => make(client).map(Client::Ready).map_err(|error: Error| {
            address_error("the service cannot be used".to_owned()).with_source(error)
        }),
        Err(_) => Ok(Client::Deferred(Deferred::new(true, move || make(http_client()?)))),
    }
}

fn http_client() -> Result<reqwest::Client> {
    reqwest::Client::builder().build().map_err(|error| {
        Error::new(ErrorKind::Unexpected, "cannot create an HTTP client").set_source(error)
    })
}

/// Transport that fails a response with more than `max_bytes` bytes. The failure follows the part that exceeds
/// the limit.
struct LimitedTransport {
    transport: ReqwestTransport,
    max_bytes: u64,
}

impl HttpTransport for LimitedTransport {
    async fn fetch(&self, request: Request<Buffer>) -> Result<Response<HttpBody>> {
        let (max_bytes, mut read) = (self.max_bytes, 0);
        let limit = move |part: Result<Buffer>| {
            if read > max_bytes {
                let message = format!("the response has more than {max_bytes} bytes");
                return Err(Error::new(ErrorKind::Unexpected, message));
            }
            part.inspect(|part| read += part.len() as u64)
        };
        let response = self.transport.fetch(request).await?;
        Ok(response.map(|body| body.map_inner(|parts| Box::new(parts.map(limit)))))
    }
}
