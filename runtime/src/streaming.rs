//! A genuine `tonic::Streaming<T>` over messages that are not HTTP/2 frames, without copying them.
//!
//! tonic builds a `Streaming` from an HTTP body and a decoder, and copies what the body yields. Here the body hands
//! each message to the decoder beside the body, and yields an empty gRPC frame in its place: tonic copies five
//! bytes, the decoder decodes the message where it landed. Size limits, which tonic would have checked on the frames,
//! are checked here.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use prost::Message;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic::{Status, Streaming};

use crate::codec::decode;
use crate::invoke::{End, Inbound};

/// A gRPC frame with an empty message.
const PLACEHOLDER: Bytes = Bytes::from_static(&[0; 5]);

/// Where parts of a call come from.
pub(crate) trait Source: Send + Unpin + 'static {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Inbound>;
}

/// What the streaming is made from beside its source.
pub(crate) struct StreamingParts<S> {
    pub(crate) source: S,
    /// A part that was taken from the source already.
    pub(crate) first: Inbound,
    /// Largest message, in bytes.
    pub(crate) limit: usize,
}

impl<S: Source> StreamingParts<S> {
    /// The requests of a call.
    pub(crate) fn into_requests<T: Message + Default + 'static>(self) -> Streaming<T> {
        let (body, decoder) = self.split(false);
        Streaming::new_request(decoder, body, None, Some(usize::MAX))
    }

    /// The replies to a call.
    pub(crate) fn into_replies<T: Message + Default + 'static>(self) -> Streaming<T> {
        let (body, decoder) = self.split(true);
        Streaming::new_response(decoder, body, StatusCode::OK, None, Some(usize::MAX))
    }

    fn split<T>(self, has_trailers: bool) -> (MessageBody<S>, InPlace<T>) {
        let handoff = Arc::new(Mutex::new(None));
        let decoder = InPlace { handoff: Arc::clone(&handoff), decoded: PhantomData };
        let body = MessageBody {
            source: Some(self.source),
            pending: self.first,
            limit: self.limit,
            has_trailers,
            handoff,
        };
        (body, decoder)
    }
}

type Handoff = Arc<Mutex<Option<Result<Bytes, Status>>>>;

struct MessageBody<S> {
    /// Dropped when the stream ends, which cancels a call that has not ended.
    source: Option<S>,
    pending: Inbound,
    limit: usize,
    /// Whether the body ends with a status, as tonic asks of replies.
    has_trailers: bool,
    handoff: Handoff,
}

impl<S: Source> MessageBody<S> {
    fn fail(&mut self, status: Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.source = None;
        if self.has_trailers {
            return Poll::Ready(Some(Err(status)));
        }
        // tonic takes a request body that fails with CANCELLED for one that ended well: an upload that was cut off
        // would look complete. The decoder fails in its place.
        self.hand_over(Err(status))
    }

    fn hand_over(&mut self, message: Result<Bytes, Status>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        *self.handoff.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
        Poll::Ready(Some(Ok(Frame::data(PLACEHOLDER))))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            let Some(source) = &mut self.source else { return Poll::Ready(None) };
            if let Some(message) = self.pending.message.take() {
                if message.len() > self.limit {
                    return self.fail(too_large(message.len(), self.limit));
                }
                return self.hand_over(Ok(message));
            }
            match self.pending.end.take() {
                Some(End::Outcome(Ok(trailers))) => {
                    self.source = None;
                    if !self.has_trailers {
                        return Poll::Ready(None);
                    }
                    let mut trailers = trailers.into_map().into_headers();
                    trailers.insert("grpc-status", HeaderValue::from_static("0"));
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Some(End::Outcome(Err(status)) | End::NotSent(status)) => return self.fail(status),
                None => {}
            }
            self.pending = ready!(source.poll_part(cx));
        }
    }
}

impl<S: Source> http_body::Body for MessageBody<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.poll_next(cx)
    }
}

/// The status of a message that is larger than its reader accepts, both in bytes.
pub(crate) fn too_large(len: usize, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "a message of {len} bytes is larger than the {limit} bytes that its reader accepts (max_decoding_message_size)"
    ))
}

struct InPlace<T> {
    handoff: Handoff,
    decoded: PhantomData<fn() -> T>,
}

impl<T: Message + Default> Decoder for InPlace<T> {
    type Item = T;
    type Error = Status;

    fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
        let message = self.handoff.lock().unwrap_or_else(PoisonError::into_inner).take();
        message.map(|message| decode(message?)).transpose()
    }

    fn buffer_settings(&self) -> BufferSettings {
        // Only placeholders pass through tonic's buffer.
        BufferSettings::new(PLACEHOLDER.len(), PLACEHOLDER.len())
    }
}
