//! gRPC's framing of messages in the body of an HTTP request or response.
//!
//! Owns the five bytes before each message, and cutting a body into messages whatever pieces it comes in. Invariant: of
//! a large message nothing is copied that came in one piece. Never: compresses; a compressed message is refused.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as _, Frame};
use tonic::Status;
use tonic::body::Body;

/// Bytes before each message: a compression flag and a length.
const PREFIX_LEN: usize = 5;

/// A message up to this size is copied behind its prefix, a larger one is a frame of its own.
const JOIN_MAX: usize = 4096;

/// A message behind its prefix: one frame, or two when it is large.
pub(crate) fn framed(message: Bytes) -> impl Iterator<Item = Bytes> {
    let mut prefix =
        BytesMut::with_capacity(PREFIX_LEN + if message.len() <= JOIN_MAX { message.len() } else { 0 });
    prefix.put_u8(0);
    prefix.put_u32(message.len() as u32);
    let rest = if message.len() <= JOIN_MAX {
        prefix.put(message);
        None
    } else {
        Some(message)
    };
    std::iter::once(prefix.freeze()).chain(rest)
}

/// The messages in a body.
pub(crate) struct Messages {
    body: Body,
    /// What was read and not yet returned: the pieces of less than one message, or whole ones.
    pieces: VecDeque<Bytes>,
    buffered: usize,
    pub(crate) trailers: Option<HeaderMap>,
    ended: bool,
}

impl Messages {
    pub(crate) fn new(body: Body) -> Self {
        let ended = body.is_end_stream();
        Self { body, pieces: VecDeque::new(), buffered: 0, trailers: None, ended }
    }

    /// The next message, or `None` at the end of the body.
    pub(crate) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            if let Some(message) = self.take_message()? {
                return Poll::Ready(Ok(Some(message)));
            }
            if self.ended {
                return Poll::Ready(match self.buffered {
                    0 => Ok(None),
                    _ => Err(Status::internal("the body ended within a message")),
                });
            }
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else { return Poll::Pending };
            match frame.transpose()?.map(Frame::into_data) {
                None => self.ended = true,
                Some(Ok(data)) => {
                    self.buffered += data.len();
                    self.pieces.push_back(data);
                }
                Some(Err(other)) => {
                    self.trailers = other.into_trailers().ok();
                    self.ended = true;
                }
            }
        }
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
            if !self.ended && self.buffered == 0 {
                // Whatever comes next stays where it is: only the end is looked for.
                if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
                    match frame.transpose() {
                        Err(status) => return Poll::Ready(Err(status)),
                        Ok(None) => self.ended = true,
                        Ok(Some(frame)) => match frame.into_data() {
                            Ok(data) => {
                                self.buffered += data.len();
                                self.pieces.push_back(data);
                            }
                            Err(_) => self.ended = true,
                        },
                    }
                }
            }
            Poll::Ready(Ok((Some(first), self.ended && self.buffered == 0)))
        })
        .await
    }

    fn take_message(&mut self) -> Result<Option<Bytes>, Status> {
        if self.buffered < PREFIX_LEN {
            return Ok(None);
        }
        let mut prefix = [0; PREFIX_LEN];
        let mut seen = self.pieces.iter().flat_map(|piece| piece.iter());
        prefix.fill_with(|| seen.next().copied().unwrap_or_default());
        let [flag, len @ ..] = prefix;
        if flag != 0 {
            return Err(Status::unimplemented(
                "compressed messages do not travel over byway's own framing: turn send_compressed off on this side",
            ));
        }
        let len = u32::from_be_bytes(len) as usize;
        if self.buffered < PREFIX_LEN + len {
            return Ok(None);
        }
        self.take(PREFIX_LEN);
        Ok(Some(self.take(len)))
    }

    /// The next `len` bytes, which are there; without a copy when one piece holds them.
    fn take(&mut self, len: usize) -> Bytes {
        self.buffered -= len;
        while self.pieces.front().is_some_and(Bytes::is_empty) {
            self.pieces.pop_front();
        }
        if let Some(front) = self.pieces.front_mut()
            && front.len() >= len
        {
            return front.split_to(len);
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

    impl http_body::Body for Pieces {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }

    fn messages(pieces: impl IntoIterator<Item = Bytes>) -> Messages {
        Messages::new(Body::new(Pieces(pieces.into_iter().collect())))
    }

    fn all(mut messages: Messages) -> Result<Vec<Bytes>, Status> {
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
        let sent: Vec<Bytes> = [0, 1, 7, JOIN_MAX, JOIN_MAX + 1, 0]
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
}
