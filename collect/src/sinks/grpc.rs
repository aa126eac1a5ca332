//! OTLP over gRPC: `opentelemetry.proto.collector.profiles.v1development.ProfilesService`.
//!
//! <https://opentelemetry.io/docs/specs/otlp/#otlpgrpc> says which requests are repeated.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use http_body::{Body, Frame};
use opentelemetry_proto::tonic::collector::profiles::v1development::profiles_service_client::ProfilesServiceClient;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use tokio::runtime::{Builder, Runtime};
use tonic::body::Body as AnyBody;
use tonic::codec::CompressionEncoding;
use tonic::codegen::{Bytes, Service, http};
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint as Address, Identity};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use super::departure::Departure;
use super::http::{MAX_ANSWER, TIMEOUT, USER_AGENT, shown, with_values};
use super::otlp::Sender;
use super::{Failure, tls};
use crate::config::{Endpoint, Tls};

/// Maximum idle time of a connection that is used again: while it is idle no pings are answered, and devices between the two ends may have forgotten it.
const MAX_IDLE: Duration = Duration::from_secs(3);

/// A receiver.
pub struct Grpc {
    runtime: Runtime,
    receiver: Receiver,
}

struct Receiver {
    /// The URL as shown in messages, without its query.
    url: String,
    address: Address,
    headers: MetadataMap,
    /// The connection, and the time of its last use.
    open: Option<(Channel, Instant)>,
}

impl Grpc {
    /// The receiver at `endpoint`. Reads the files of the configuration.
    pub fn new(endpoint: &Endpoint) -> anyhow::Result<Self> {
        let url = shown(&endpoint.url).to_owned();
        let address = Address::from_shared(endpoint.url.clone()).context("url")?;
        let mut address = address.user_agent(USER_AGENT)?.connect_timeout(TIMEOUT);
        if url.starts_with("https://") {
            address = address.tls_config(client(&endpoint.tls)?)?;
        }
        let mut headers = MetadataMap::new();
        for (name, value) in with_values(&endpoint.headers, &endpoint.header_files)? {
            let key: MetadataKey<Ascii> = name
                .to_ascii_lowercase()
                .parse()
                .map_err(|_| anyhow!("{name} is no valid name of a gRPC header"))?;
            let mut value: MetadataValue<Ascii> = value
                .parse()
                .map_err(|_| anyhow!("The value of the header {name} isn't in ASCII"))?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            receiver: Receiver {
                url,
                address,
                headers,
                open: None,
            },
        })
    }
}

impl Receiver {
    async fn connected(&mut self) -> Result<Channel, Failure> {
        if let Some((channel, used)) = self.open.take()
            && used.elapsed() < MAX_IDLE
        {
            return Ok(channel);
        }
        let connected = self.address.connect().await;
        Ok(connected.map_err(|error| {
            let advice = tls::advice(&error);
            anyhow!(error).context(format!("Cannot connect to {}{advice}", self.url))
        })?)
    }

    async fn export(
        &mut self,
        message: ExportProfilesServiceRequest,
        departure: &Arc<Departure>,
    ) -> Result<ExportProfilesServiceResponse, Failure> {
        let channel = self.connected().await?;
        let holding = HeldConnection {
            channel: channel.clone(),
            departure: Arc::clone(departure),
        };
        let mut client = ProfilesServiceClient::new(holding)
            .send_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(MAX_ANSWER);
        let mut request = Request::new(message);
        *request.metadata_mut() = self.headers.clone();
        request.set_timeout(TIMEOUT);
        let answer = client.export(request).await;
        let answer = answer.map_err(|status| failure(&self.url, &status))?;
        self.open = Some((channel, Instant::now()));
        Ok(answer.into_inner())
    }
}

impl Sender for Grpc {
    fn send(
        &mut self,
        request: ExportProfilesServiceRequest,
        departure: &Arc<Departure>,
    ) -> Result<ExportProfilesServiceResponse, Failure> {
        let answer = self.receiver.export(request, departure);
        self.runtime.block_on(answer)
    }
}

/// A connection on which a request's last byte is held back until its departure is noted.
struct HeldConnection {
    channel: Channel,
    departure: Arc<Departure>,
}

impl Service<http::Request<AnyBody>> for HeldConnection {
    type Response = <Channel as Service<http::Request<AnyBody>>>::Response;
    type Error = <Channel as Service<http::Request<AnyBody>>>::Error;
    type Future = <Channel as Service<http::Request<AnyBody>>>::Future;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        <Channel as Service<http::Request<AnyBody>>>::poll_ready(&mut self.channel, context)
    }

    fn call(&mut self, request: http::Request<AnyBody>) -> Self::Future {
        let departure = Arc::clone(&self.departure);
        let hold = |body| HeldBack {
            body,
            last: None,
            departure,
        };
        let request = request.map(|body| AnyBody::new(hold(body)));
        self.channel.call(request)
    }
}

/// The body of such a request: the message and its length, which tonic sends as one piece.
struct HeldBack {
    body: AnyBody,
    /// The last byte of the piece whose other bytes were passed on.
    last: Option<Bytes>,
    departure: Arc<Departure>,
}

impl Body for HeldBack {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(last) = self.last.take() {
            let noted = self.departure.note();
            let last = noted.map(|()| Frame::data(last));
            return Poll::Ready(Some(
                last.map_err(|error| Status::aborted(error.to_string())),
            ));
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            end => return Poll::Ready(end),
        };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(mut data) => {
                if !data.is_empty() {
                    self.last = Some(data.split_off(data.len() - 1));
                }
                Frame::data(data)
            }
            Err(frame) => frame,
        })))
    }
}

fn client(tls: &Tls) -> anyhow::Result<ClientTlsConfig> {
    // This checks the files and the system's authorities, with clear errors.
    tls::client(tls, true)?;
    let mut config = ClientTlsConfig::new();
    config = match &tls.ca_file {
        Some(path) => config.ca_certificate(Certificate::from_pem(tls::read(path)?)),
        None => config.with_native_roots(),
    };
    if let (Some(chain), Some(key)) = (&tls.certificate_file, &tls.key_file) {
        config = config.identity(Identity::from_pem(tls::read(chain)?, tls::read(key)?));
    }
    Ok(config)
}

/// The failure of a request that ended with `status`.
fn failure(url: &str, status: &Status) -> Failure {
    let message = kvmprof_report::text::visible(status.message());
    let mut error = anyhow!("{url} answers {:?}: {message}", status.code());
    // It isn't an answer of the receiver: the connection has failed.
    if let Some(source) = std::error::Error::source(status) {
        let advice = tls::advice(source);
        error = anyhow!("Cannot send to {url}{advice}: {message}: {source}");
        return error.into();
    }
    let after = status.get_details_retry_info().map(|info| info.retry_delay);
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => Failure::Retry {
            error,
            after: after.flatten(),
        },
        // By OTLP it can be repeated only if the receiver says when.
        Code::ResourceExhausted if after.is_some() => Failure::Retry {
            error,
            after: after.flatten(),
        },
        // These are about the sender or the receiver's software, and not about the batch: nothing is lost until their cause is removed.
        Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => error.into(),
        _ => Failure::Refused(error),
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    /// Whether the request is repeated, and after which time.
    fn retried(status: &Status) -> Option<Option<Duration>> {
        match failure("http://x", status) {
            Failure::Retry { after, .. } => Some(after),
            Failure::Refused(_) | Failure::Partly(_) => None,
        }
    }

    #[test]
    fn retryable_codes_are_those_of_otlp() {
        for code in [1, 4, 7, 10, 11, 12, 14, 15, 16].map(Code::from_i32) {
            assert_eq!(retried(&Status::new(code, "")), Some(None), "{code:?}");
        }
        for code in [2, 3, 5, 6, 8, 9, 13].map(Code::from_i32) {
            assert_eq!(retried(&Status::new(code, "")), None, "{code:?}");
        }
        let delay = Some(Duration::from_millis(2500));
        for code in [Code::ResourceExhausted, Code::Unavailable] {
            let details = ErrorDetails::with_retry_info(delay);
            let status = Status::with_error_details(code, "", details);
            assert_eq!(retried(&status), Some(delay), "{code:?}");
        }
    }
}
