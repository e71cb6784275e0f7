//! Between the headers of HTTP/2 and what gRPC says in them.
//!
//! Owns both directions of request heads, reply heads and trailers. Names that the transport owns are neither sent for
//! users nor shown to them. Never: trusts what came; whatever is not as gRPC has it becomes the status that gRPC asks for.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use byway_runtime::session::{Metadata, Outcome, ReceivedHead, is_reserved};
use byway_runtime::{TIMEOUT_HEADER, format_timeout, parse_timeout};
use http::header::{CONTENT_TYPE, HeaderName, TE, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use percent_encoding::percent_decode;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::status::code_of_http;

pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("grpc-rust-byway/", env!("CARGO_PKG_VERSION")));

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const TIMEOUT: HeaderName = HeaderName::from_static(TIMEOUT_HEADER);
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
pub(super) const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
pub(super) const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// Names that HTTP/2 forbids to send, and those by which gRPC describes messages.
const NOT_FOR_USERS: [&str; 8] = [
    "connection",
    "grpc-accept-encoding",
    "grpc-encoding",
    "host",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];

/// Peers write base64 with and without padding.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// What HTTP/2 counts for each header beside its name and value, in bytes (RFC 9113, 6.5.2).
const PER_HEADER: usize = 32;

/// How large `headers` and `more` are together as HTTP/2 counts them, if that is over `limit`.
pub(super) fn over(headers: &HeaderMap, more: usize, limit: usize) -> Option<usize> {
    if limit == u32::MAX as usize {
        return None;
    }
    let each = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + PER_HEADER);
    Some(more + each.sum::<usize>()).filter(|len| *len > limit)
}

// ---- As a server ----

/// Why a request is no call.
pub(super) enum Refusal {
    /// Not gRPC at all: an HTTP status, and a sentence.
    Http(StatusCode, &'static str),
    /// A call that cannot be served.
    Grpc(Status),
    /// A call whose messages would not be understood: its answer names the encoding that would be.
    Encoding(Status),
}

/// Whether a request means to be gRPC.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else { return false };
    let Some(rest) = value.as_bytes().strip_prefix(b"application/grpc") else { return false };
    matches!(rest, [] | [b';', ..]) || rest == b"+proto" || rest.starts_with(b"+proto;")
}

/// What a client says when it begins a call.
pub(super) fn received_head(parts: Parts) -> Result<ReceivedHead, Refusal> {
    if !is_grpc(&parts.headers) {
        let text = "this server speaks gRPC: the content-type is to be application/grpc";
        return Err(Refusal::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    if parts.method != Method::POST {
        return Err(Refusal::Http(StatusCode::METHOD_NOT_ALLOWED, "gRPC requests are POST requests"));
    }
    let mut headers = parts.headers;
    if let Some(encoding) = headers.remove(ENCODING)
        && encoding != IDENTITY
    {
        let text = format!("requests compressed with {encoding:?} are not understood, only identity is");
        return Err(Refusal::Encoding(Status::unimplemented(text)));
    }
    let timeout = headers.remove(TIMEOUT).map(|value| {
        value.to_str().ok().and_then(parse_timeout).ok_or_else(|| {
            let text = "is not a number of at most 8 digits and one of H, M, S, m, u, n";
            Refusal::Grpc(Status::internal(format!("malformed {TIMEOUT_HEADER}: {value:?} {text}")))
        })
    });
    let timeout = timeout.transpose()?;
    for name in [TE, CONTENT_TYPE, ACCEPT_ENCODING] {
        headers.remove(name);
    }
    check_binary(&headers).map_err(Refusal::Grpc)?;
    let path = Bytes::copy_from_slice(parts.uri.path().as_bytes());
    let metadata = Metadata::from(MetadataMap::from_headers(headers));
    Ok(ReceivedHead { path: path.into(), timeout, metadata })
}

/// # Errors
/// A value that is to be base64 and is not. One header may carry several, with commas between them.
fn check_binary(headers: &HeaderMap) -> Result<(), Status> {
    for (name, value) in headers.iter().filter(|(name, _)| name.as_str().ends_with("-bin")) {
        let mut values = value.as_bytes().split(|byte| *byte == b',');
        if !values.all(|value| LENIENT.decode(value.trim_ascii()).is_ok()) {
            return Err(Status::internal(format!("malformed binary metadata: {name} is not base64")));
        }
    }
    Ok(())
}

/// The headers of a reply that goes on.
pub(super) fn reply_head(metadata: Option<&MetadataMap>) -> HeaderMap {
    let mut headers = sanitized(metadata, 1);
    headers.insert(CONTENT_TYPE, GRPC);
    headers
}

/// The headers or trailers that end a call.
pub(super) fn reply_end(end: Result<Option<&MetadataMap>, &Status>) -> HeaderMap {
    match end {
        Ok(trailers) => {
            let mut headers = sanitized(trailers, 1);
            headers.insert(STATUS, HeaderValue::from_static("0"));
            headers
        }
        Err(status) => {
            let mut headers = sanitized(Some(status.metadata()), 3);
            let bare =
                Status::with_details(status.code(), status.message(), status.details().to_vec().into());
            if bare.add_header(&mut headers).is_err() {
                // Its text cannot be one even percent-encoded; that is tonic's to say.
                headers.insert(STATUS, HeaderValue::from(status.code() as i32));
            }
            headers
        }
    }
}

/// A user's metadata without the names that the transport owns.
fn sanitized(metadata: Option<&MetadataMap>, more: usize) -> HeaderMap {
    let Some(metadata) = metadata.filter(|metadata| !metadata.is_empty()) else {
        return HeaderMap::with_capacity(more);
    };
    let mut headers = HeaderMap::with_capacity(metadata.len() + more);
    for (name, value) in metadata.as_ref() {
        if !is_reserved(name) && !NOT_FOR_USERS.contains(&name.as_str()) {
            headers.append(name, value.clone());
        }
    }
    headers
}

// ---- As a client ----

/// The headers of a call.
pub(super) fn request_head(metadata: &MetadataMap, timeout: Option<Duration>) -> HeaderMap {
    let mut headers = sanitized(Some(metadata), 4);
    headers.insert(TE, TRAILERS);
    headers.insert(CONTENT_TYPE, GRPC);
    headers.entry(USER_AGENT).or_insert(AGENT);
    if let Some(timeout) = timeout {
        let text = format_timeout(timeout);
        headers
            .insert(TIMEOUT, HeaderValue::from_maybe_shared(Bytes::from(text)).expect("digits and a letter"));
    }
    headers
}

/// How a reply begins.
pub(super) enum ReplyHead {
    /// With initial metadata; messages follow.
    Begun(Metadata),
    /// And ends at once.
    Ended(Outcome),
}

/// What a server says first.
pub(super) fn received_reply(status: StatusCode, mut headers: HeaderMap) -> ReplyHead {
    if headers.contains_key(STATUS) {
        return ReplyHead::Ended(received_end(headers));
    }
    if status != StatusCode::OK {
        let text = format!("the server answered with HTTP status {status} and no status of gRPC");
        return ReplyHead::Ended(Err(Status::new(code_of_http(status), text)));
    }
    if !is_grpc(&headers) {
        let named = headers.get(CONTENT_TYPE);
        let text = format!("the server answered with content-type {named:?}, which is not gRPC's");
        return ReplyHead::Ended(Err(Status::unknown(text)));
    }
    for name in [CONTENT_TYPE, ENCODING, ACCEPT_ENCODING] {
        headers.remove(name);
    }
    ReplyHead::Begun(MetadataMap::from_headers(headers).into())
}

/// How a call ended, by its trailers.
pub(super) fn received_end(mut headers: HeaderMap) -> Outcome {
    let Some(code) = headers.remove(STATUS) else {
        return Err(Status::unknown("the server ended the call without a grpc-status"));
    };
    let message = headers.remove(MESSAGE);
    let details = headers.remove(DETAILS);
    for name in [CONTENT_TYPE, ENCODING, ACCEPT_ENCODING] {
        headers.remove(name);
    }
    let metadata = MetadataMap::from_headers(headers);
    let code = Code::from_bytes(code.as_bytes());
    if code == Code::Ok {
        return Ok(metadata.into());
    }
    let message = message
        .as_ref()
        .map_or(Cow::Borrowed(""), |text| percent_decode(text.as_bytes()).decode_utf8_lossy());
    // What cannot be read is left out: the status itself is worth more than its details.
    let details = details.and_then(|details| LENIENT.decode(details.as_bytes()).ok()).unwrap_or_default();
    Err(Status::with_details_and_metadata(code, message, details.into(), metadata))
}
