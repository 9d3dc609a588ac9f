//! Services over HTTP, with an HTTP client of their own whose responses are limited in size.

use ::http::{Request, Response};
use ::opendal::{
    Buffer, Configurator, Error, ErrorKind, HttpBody, HttpTransport, HttpTransporter, Operator,
    Result,
};
use futures::StreamExt;
use opendal_http_transport_reqwest::ReqwestTransport;

use super::super::client::{Client, Later};
use crate::cache::remote::settings::Settings;
use crate::cache::remote::url::bad;

/// Size in bytes of the largest response that is not an object: lists of objects and errors, which OpenDAL
/// reads into memory as a whole.
const MOST_TEXT: u64 = 16 << 20;

/// Returns access to a service over HTTP. It is ready at once if the machine has what an HTTP client needs,
/// such as certificates. Otherwise it is made when it is first needed.
pub(super) fn client(
    config: impl Configurator + Clone + Send + Sync,
    settings: &Settings,
) -> crate::error::Result<Client> {
    let most = settings.most_bytes.max(MOST_TEXT);
    let make = move |client| {
        let operator = Operator::from_config(config.clone())?;
        // OpenDAL's own client is shared by the whole process, and its connections belong to the runtime
        // that opened them. This one ends with the worker's runtime.
        let transport = Limited { transport: ReqwestTransport::new(client), most };
        let context = operator.base_context().with_http_transport(HttpTransporter::new(transport));
        Ok(operator.with_context(context))
    };
    match http_client() {
        Ok(client) => make(client).map(Client::There).map_err(|error: Error| {
            bad("the service cannot be used".to_owned()).with_source(error)
        }),
        Err(_) => Ok(Client::Later(Later::new(true, move || make(http_client()?)))),
    }
}

fn http_client() -> Result<reqwest::Client> {
    reqwest::Client::builder().build().map_err(|error| {
        Error::new(ErrorKind::Unexpected, "cannot create an HTTP client").set_source(error)
    })
}

/// Fails a response once more than `most` bytes and the part that exceeds them were read.
struct Limited {
    transport: ReqwestTransport,
    most: u64,
}

impl HttpTransport for Limited {
    async fn fetch(&self, request: Request<Buffer>) -> Result<Response<HttpBody>> {
        let (most, mut read) = (self.most, 0);
        let limit = move |part: Result<Buffer>| {
            if read > most {
                let message = format!("the response has more than {most} bytes");
                return Err(Error::new(ErrorKind::Unexpected, message));
            }
            part.inspect(|part| read += part.len() as u64)
        };
        let response = self.transport.fetch(request).await?;
        Ok(response.map(|body| body.map_inner(|parts| Box::new(parts.map(limit)))))
    }
}
