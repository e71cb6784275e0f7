//! gRPC's framing of messages in the body of an HTTP request or response.
//!
//! Owns the five bytes before each message, and cutting a body into messages whatever pieces it comes in. Invariants: of
//! a large message nothing is copied that came in one piece, and nothing twice that came in several; what waits for the
//! rest of its message is bounded. Never: compresses; a compressed message is refused.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use tonic::Status;

use crate::codec::Encode;
use crate::output::{Output, Segments};

/// Bytes before each message: a compression flag and a length.
pub const PREFIX_LEN: usize = 5;

/// A message up to this size is copied behind its prefix, a larger one is a frame of its own.
const JOIN_MAX: usize = 4096;

/// A message of at least this size whose end is not there yet gets memory of its own, into which its pieces are copied
/// as they come. The pieces of a smaller one wait as they are.
const LANDING_MIN: usize = 16 << 10;

/// A message behind its prefix: one frame, or two when it is large.
pub(crate) fn framed(message: Bytes) -> impl Iterator<Item = Bytes> {
    let mut prefix =
        BytesMut::with_capacity(PREFIX_LEN + if message.len() <= JOIN_MAX { message.len() } else { 0 });
    put_prefix(&mut prefix, message.len());
    let rest = if message.len() <= JOIN_MAX {
        prefix.put(message);
        None
    } else {
        Some(message)
    };
    std::iter::once(prefix.freeze()).chain(rest)
}

/// Appends a message of `len` bytes behind its prefix. Its large `bytes` fields go by reference.
pub fn append_framed(segments: &mut Segments, message: &dyn Encode, len: usize) {
    segments.reserve(PREFIX_LEN + len.min(JOIN_MAX));
    segments.append(|output: &mut Output<'_>| {
        put_prefix(output, len);
        message.encode(output);
    });
}

fn put_prefix(output: &mut impl BufMut, len: usize) {
    output.put_u8(0);
    output.put_u32(len as u32);
}

/// What the reader of a body accepts.
#[derive(Debug, Clone)]
pub struct Acceptance {
    /// Largest message, in bytes.
    pub max_message: usize,
    /// What a message with this compression flag, which is not zero, ends its call with.
    pub compressed: fn(u8) -> Status,
    /// Shared by the bodies of a connection: what may wait for the rest of its message.
    pub budget: Option<Arc<Budget>>,
}

/// Memory for messages of which a part has come, over all bodies of a connection.
#[derive(Debug)]
pub struct Budget(AtomicUsize);

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    fn take(self: &Arc<Self>, bytes: usize) -> Option<Taken> {
        let left = |left: usize| left.checked_sub(bytes);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        taken.ok().map(|_| Taken { budget: Arc::clone(self), bytes })
    }
}

/// Part of a budget, given back when dropped.
#[derive(Debug)]
struct Taken {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// The messages in a body.
#[derive(Debug)]
pub struct Messages<B: Body> {
    body: B,
    acceptance: Acceptance,
    /// What the error of a body means for its call.
    failed: fn(B::Error) -> Status,
    /// What was read and not yet returned: the pieces of less than one message, or whole ones.
    pieces: VecDeque<Bytes>,
    buffered: usize,
    landing: Option<Landing>,
    trailers: Option<HeaderMap>,
    ended: bool,
}

/// A large message of which only the end is missing.
#[derive(Debug)]
struct Landing {
    message: BytesMut,
    len: usize,
    _taken: Option<Taken>,
}

impl Messages<tonic::body::Body> {
    /// The messages of a service or client in this process, which has its own limits.
    pub(crate) fn within(body: tonic::body::Body) -> Self {
        let compressed = |_| {
            Status::unimplemented(
                "compressed messages do not travel over byway's own framing: turn send_compressed off on this side",
            )
        };
        let acceptance = Acceptance { max_message: u32::MAX as usize, compressed, budget: None };
        Self::new(body, acceptance, |status| status)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Messages<B> {
    /// The messages of `body`; `failed` says what an error of it means.
    pub fn new(body: B, acceptance: Acceptance, failed: fn(B::Error) -> Status) -> Self {
        let ended = body.is_end_stream();
        let pieces = VecDeque::new();
        Self { body, acceptance, failed, pieces, buffered: 0, landing: None, trailers: None, ended }
    }

    /// The next message, or `None` at the end of the body.
    ///
    /// # Errors
    /// The body failed, ended within a message, or holds one that is not accepted. Nothing after it can be read.
    pub fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            if let Some(message) = self.take_message()? {
                return Poll::Ready(Ok(Some(message)));
            }
            if self.ended {
                let is_whole = self.buffered == 0 && self.landing.is_none();
                return Poll::Ready(match is_whole {
                    true => Ok(None),
                    false => Err(Status::internal("the body ended within a message")),
                });
            }
            let Poll::Ready(()) = self.poll_more(cx)? else { return Poll::Pending };
        }
    }

    /// Accepts no larger messages than this, in bytes.
    pub fn limit(&mut self, max_message: usize) {
        self.acceptance.max_message = self.acceptance.max_message.min(max_message);
    }

    /// Whether nothing follows what was returned. `false` says nothing: the end may be on its way.
    pub fn is_at_end(&self) -> bool {
        self.buffered == 0 && self.landing.is_none() && (self.ended || self.body.is_end_stream())
    }

    /// Whether the end is there already, behind what was returned. Whatever else is there stays where it is.
    ///
    /// # Errors
    /// The body failed.
    pub fn looks_ended(&mut self, cx: &mut Context<'_>) -> Result<bool, Status> {
        if !self.ended
            && self.buffered == 0
            && self.landing.is_none()
            && let Poll::Ready(Err(status)) = self.poll_more(cx)
        {
            return Err(status);
        }
        Ok(self.is_at_end())
    }

    /// What came after the last message.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }

    /// The first message, if it can be had without waiting, and whether it is all there is: a unary request is then one
    /// frame.
    pub(crate) async fn ready_now(&mut self) -> Result<(Option<Bytes>, bool), Status> {
        poll_fn(|cx| {
            let first = match self.poll_message(cx) {
                Poll::Pending => return Poll::Ready(Ok((None, false))),
                Poll::Ready(Err(status)) => return Poll::Ready(Err(status)),
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok((None, true))),
                Poll::Ready(Ok(Some(first))) => first,
            };
            Poll::Ready(self.looks_ended(cx).map(|ended| (Some(first), ended)))
        })
        .await
    }

    /// Reads one more frame of the body.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else { return Poll::Pending };
        match frame.transpose().map_err(self.failed)?.map(Frame::into_data) {
            None => self.ended = true,
            Some(Ok(data)) => self.keep(data),
            Some(Err(other)) => {
                self.trailers = other.into_trailers().ok();
                self.ended = true;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn keep(&mut self, mut data: Bytes) {
        if let Some(landing) = &mut self.landing {
            let missing = landing.len - landing.message.len();
            landing.message.put(data.split_to(missing.min(data.len())));
        }
        self.buffered += data.len();
        if !data.is_empty() {
            self.pieces.push_back(data);
        }
    }

    fn take_message(&mut self) -> Result<Option<Bytes>, Status> {
        if let Some(landed) = self.landing.take_if(|landing| landing.message.len() == landing.len) {
            return Ok(Some(landed.message.freeze()));
        }
        if self.landing.is_some() || self.buffered < PREFIX_LEN {
            return Ok(None);
        }
        let mut prefix = [0; PREFIX_LEN];
        let mut seen = self.pieces.iter().flat_map(|piece| piece.iter());
        prefix.fill_with(|| seen.next().copied().unwrap_or_default());
        let [flag, len @ ..] = prefix;
        if flag != 0 {
            return Err((self.acceptance.compressed)(flag));
        }
        let len = u32::from_be_bytes(len) as usize;
        if len > self.acceptance.max_message {
            return Err(Status::resource_exhausted(format!(
                "a message of {len} bytes is larger than the {} bytes that this side accepts",
                self.acceptance.max_message
            )));
        }
        if self.buffered >= PREFIX_LEN + len {
            self.take(PREFIX_LEN);
            return Ok(Some(self.take(len)));
        }
        // While only the prefix is there, the whole message may still come in one piece.
        if len >= LANDING_MIN && self.buffered > PREFIX_LEN {
            self.take(PREFIX_LEN);
            self.land(len)?;
        }
        Ok(None)
    }

    /// Gives a message of `len` bytes, of which not all have come, memory of its own.
    fn land(&mut self, len: usize) -> Result<(), Status> {
        let taken = match &self.acceptance.budget {
            None => None,
            Some(budget) => Some(budget.take(len).ok_or_else(|| {
                Status::resource_exhausted(
                    "the connection has no room for another large message (receive_budget)",
                )
            })?),
        };
        let mut message = BytesMut::with_capacity(len);
        for piece in self.pieces.drain(..) {
            message.put(piece);
        }
        self.buffered = 0;
        self.landing = Some(Landing { message, len, _taken: taken });
        Ok(())
    }

    /// The next `len` bytes, which are there; without a copy when one piece holds them.
    fn take(&mut self, len: usize) -> Bytes {
        self.buffered -= len;
        if let Some(front) = self.pieces.front_mut()
            && front.len() >= len
        {
            let taken = front.split_to(len);
            if front.is_empty() {
                self.pieces.pop_front();
            }
            return taken;
        }
        let mut joined = BytesMut::with_capacity(len);
        while joined.len() < len {
            let Some(mut piece) = self.pieces.pop_front() else { break };
            let part = piece.split_to(piece.len().min(len - joined.len()));
            joined.put(part);
            if !piece.is_empty() {
                self.pieces.push_front(piece);
            }
        }
        joined.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that comes in the given pieces.
    struct Pieces(VecDeque<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }

    fn messages(pieces: impl IntoIterator<Item = Bytes>) -> Messages<tonic::body::Body> {
        Messages::within(tonic::body::Body::new(Pieces(pieces.into_iter().collect())))
    }

    fn all<B: Body<Data = Bytes> + Unpin>(mut messages: Messages<B>) -> Result<Vec<Bytes>, Status> {
        let mut all = Vec::new();
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        loop {
            match messages.poll_message(cx) {
                Poll::Ready(Ok(Some(message))) => all.push(message),
                Poll::Ready(Ok(None)) => return Ok(all),
                Poll::Ready(Err(status)) => return Err(status),
                Poll::Pending => unreachable!("every piece is there"),
            }
        }
    }

    #[test]
    fn messages_survive_any_cutting_of_the_body() {
        let sent: Vec<Bytes> =
            [0, 1, 7, JOIN_MAX, JOIN_MAX + 1, LANDING_MIN - 1, LANDING_MIN, 3, 2 * LANDING_MIN, 0]
                .into_iter()
                .map(|len| Bytes::from((0..len).map(|n| n as u8).collect::<Vec<_>>()))
                .collect();
        let body: Vec<u8> = sent.iter().cloned().flat_map(framed).flat_map(|piece| piece.to_vec()).collect();
        for size in [1, 2, 3, 5, 6, 64, 4096, body.len()] {
            let pieces = body.chunks(size).map(Bytes::copy_from_slice);
            assert_eq!(all(messages(pieces)).expect("well formed"), sent, "in pieces of {size}");
        }
    }

    #[test]
    fn a_large_message_in_one_piece_is_not_copied() {
        let large = Bytes::from(vec![7; 1 << 20]);
        let received = all(messages(framed(large.clone()))).expect("well formed");
        assert_eq!(received[0].as_ptr(), large.as_ptr());
    }

    #[test]
    fn compressed_and_truncated_messages_are_refused() {
        let compressed = all(messages([Bytes::from_static(&[1, 0, 0, 0, 1, 9])])).expect_err("compressed");
        assert_eq!(compressed.code(), tonic::Code::Unimplemented);
        assert!(
            compressed.message().contains("send_compressed"),
            "says what to do: {}",
            compressed.message()
        );
        for cut in [&[0, 0, 0][..], &[0, 0, 0, 0, 2, 9]] {
            let truncated = all(messages([Bytes::copy_from_slice(cut)])).expect_err("truncated");
            assert_eq!(truncated.code(), tonic::Code::Internal);
        }
    }

    #[test]
    fn what_waits_for_the_rest_of_its_message_is_bounded() {
        let budget = Arc::new(Budget::new(3 * LANDING_MIN));
        let begun = || {
            let prefix = Bytes::from_static(&[0, 0, 0, 0x80, 0, 7]);
            let compressed = |_| Status::internal("compressed");
            let acceptance =
                Acceptance { max_message: 0x8000, compressed, budget: Some(Arc::clone(&budget)) };
            Messages::new(Pieces([prefix].into()), acceptance, |status| status)
        };
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        let mut first = begun();
        // It lands, and the body then ends within it.
        assert_eq!(code(first.poll_message(cx)), tonic::Code::Internal);
        assert_eq!(
            code(begun().poll_message(cx)),
            tonic::Code::ResourceExhausted,
            "the first still holds its memory"
        );
        drop(first);
        assert_eq!(code(begun().poll_message(cx)), tonic::Code::Internal, "there is room again");
        let mut larger = begun();
        larger.acceptance.max_message = 0x7fff;
        assert_eq!(code(larger.poll_message(cx)), tonic::Code::ResourceExhausted);
    }

    fn code(polled: Poll<Result<Option<Bytes>, Status>>) -> tonic::Code {
        match polled {
            Poll::Ready(Err(status)) => status.code(),
            other => panic!("not a failure: {other:?}"),
        }
    }
}
