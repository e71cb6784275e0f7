//! What gRPC makes of HTTP statuses and of the errors of HTTP/2.
//!
//! Sources: gRPC's http-grpc-status-mapping.md for responses without a grpc-status, and PROTOCOL-HTTP2.md, "Errors", for
//! resets.

use std::error::Error;

use http::StatusCode;
use tonic::{Code, Status};

/// The code of a response that carries an HTTP status and no status of gRPC.
pub(super) fn code_of_http(status: StatusCode) -> Code {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Code::Internal,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::Unimplemented,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
        _ => Code::Unknown,
    }
}

fn code_of_reset(reason: h2::Reason) -> Code {
    match reason {
        h2::Reason::REFUSED_STREAM => Code::Unavailable,
        h2::Reason::CANCEL => Code::Cancelled,
        h2::Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
        h2::Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
        _ => Code::Internal,
    }
}

/// What an error of hyper means for the call that it ended.
pub(super) struct Failure {
    pub(super) status: Status,
    /// The peer has not looked at the call: it may be sent again.
    pub(super) never_seen: bool,
}

pub(super) fn failure(error: &hyper::Error) -> Failure {
    let Some(source) = http2_error(error) else {
        let status = Status::unavailable(format!("the connection was lost: {}", innermost(error)));
        return Failure { status, never_seen: error.is_canceled() };
    };
    let reason = source.reason();
    match reason {
        Some(reason) if source.is_reset() => {
            let who = if source.is_remote() { "the peer" } else { "this side" };
            let status = Status::new(code_of_reset(reason), format!("{who} reset the call: {reason}"));
            let never_seen = source.is_remote() && reason == h2::Reason::REFUSED_STREAM;
            Failure { status, never_seen }
        }
        // The streams of a connection on which the peer said GOAWAY fail with it when they are above the last one that it
        // will look at; those below go on.
        Some(reason) if source.is_go_away() && source.is_remote() => {
            let status =
                Status::unavailable(format!("the peer takes no more calls on this connection: {reason}"));
            Failure { status, never_seen: true }
        }
        _ => {
            let status = Status::unavailable(format!("the connection was lost: {}", innermost(source)));
            Failure { status, never_seen: false }
        }
    }
}

/// What a server's handler learns of a request body that failed.
pub(super) fn request_failed(error: hyper::Error) -> Status {
    match http2_error(&error).and_then(h2::Error::reason) {
        Some(h2::Reason::CANCEL | h2::Reason::NO_ERROR) => Status::cancelled("the caller cancelled the call"),
        _ => Status::cancelled(format!("the caller has gone: {}", innermost(&error))),
    }
}

/// What a client's caller learns of a response body that failed.
pub(super) fn reply_failed(error: hyper::Error) -> Status {
    failure(&error).status
}

fn http2_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a h2::Error> {
    causes(error).find_map(|error| error.downcast_ref())
}

fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    causes(error).last().unwrap_or(error)
}

/// An error and what it was caused by.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}
