//! The heads of frames: what a request and a reply say beside their messages.
//!
//! Owns the encoding of paths, time-outs, metadata and status. Metadata travels as HTTP/2 would carry it (`-bin`
//! values in base64), so that conversions to and from gRPC lose nothing. Names that the transport owns are never
//! sent. Invariant: an empty head means no metadata, no deadline and status OK, and costs no bytes.
//! Never: trusts a length from the peer before it is compared with what is left.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue};
use prost::encoding::{decode_varint, encoded_len_varint};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::error::ConnectionError;
use crate::codec::Encode;
use crate::invoke::SendError;
use crate::output::Output;

/// Entries of metadata that one map in a head may carry: more is the peer's fault.
const MAX_ENTRIES: usize = 256;

/// What a client says when it opens a call.
#[derive(Debug, Clone, Copy)]
pub struct RequestHead<'a> {
    /// `/package.Service/Method`.
    pub path: &'a str,
    /// How long the call may still take.
    pub timeout: Option<Duration>,
    /// The caller's metadata.
    pub metadata: &'a MetadataMap,
}

impl RequestHead<'_> {
    /// # Errors
    /// What the server would take for a broken peer.
    pub(crate) fn check(&self) -> Result<(), SendError> {
        if !self.path.as_bytes().starts_with(b"/") {
            return Err(SendError::NoPath);
        }
        check_entries(self.metadata)
    }

    /// Microseconds left, rounded up, plus one; zero for no limit.
    fn wire_timeout(&self) -> u64 {
        self.timeout.map_or(0, |timeout| {
            let micros = timeout.as_secs().saturating_mul(1_000_000);
            micros.saturating_add(timeout.subsec_nanos().div_ceil(1000).into()).min(u64::MAX - 1) + 1
        })
    }
}

impl Encode for RequestHead<'_> {
    fn encoded_len(&self) -> usize {
        bytes_len(self.path.len()) + encoded_len_varint(self.wire_timeout()) + metadata_len(self.metadata)
    }

    fn encode(&self, output: &mut Output<'_>) {
        put_bytes(self.path.as_bytes(), output);
        put_varint(self.wire_timeout(), output);
        put_metadata(self.metadata, output);
    }
}

/// A method's path where it landed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path(Bytes);

impl Path {
    /// The path as it came, `/package.Service/Method`; nobody has checked that it is UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.utf8_chunks().try_for_each(|chunk| f.write_str(chunk.valid()))
    }
}

impl From<Bytes> for Path {
    fn from(path: Bytes) -> Self {
        Self(path)
    }
}

impl From<&'static str> for Path {
    fn from(path: &'static str) -> Self {
        Self(Bytes::from_static(path.as_bytes()))
    }
}

/// Metadata that arrived. None costs nothing.
#[derive(Debug, Clone, Default)]
pub struct Metadata(Option<Box<MetadataMap>>);

impl Metadata {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The entries, if any.
    pub fn as_map(&self) -> Option<&MetadataMap> {
        self.0.as_deref()
    }

    /// The entries.
    pub fn into_map(self) -> MetadataMap {
        self.0.map_or_else(MetadataMap::new, |map| *map)
    }
}

impl From<MetadataMap> for Metadata {
    fn from(map: MetadataMap) -> Self {
        Self((!map.is_empty()).then(|| Box::new(map)))
    }
}

/// What a server learns when a call is opened.
#[derive(Debug)]
pub struct ReceivedHead {
    /// `/package.Service/Method`.
    pub path: Path,
    /// How long after the frame was encoded the caller gives up.
    pub timeout: Option<Duration>,
    /// The caller's metadata.
    pub metadata: Metadata,
}

impl ReceivedHead {
    pub(crate) fn decode(mut head: Bytes) -> Result<Self, ConnectionError> {
        let mut rest = Rest::of(&head);
        let path = rest.take_bytes()?;
        let (begin, len) = (head.len() - rest.rest.len() - path.len(), path.len());
        if !path.starts_with(b"/") {
            return Err(ConnectionError::MalformedHead("the path is not one"));
        }
        let timeout = rest.take_varint()?.checked_sub(1).map(Duration::from_micros);
        let metadata = rest.take_metadata()?;
        rest.ended()?;
        // The head itself becomes the path: one more reference would cost more than reading all of it.
        head.advance(begin);
        head.truncate(len);
        Ok(Self { path: Path(head), timeout, metadata })
    }
}

/// How a call ended: trailing metadata, or a status that is not OK (its metadata are the trailers).
pub type Outcome = Result<Metadata, Status>;

/// The head of a server's `Data` frame.
pub(crate) struct ReplyHead<'a> {
    pub(crate) initial: Option<&'a MetadataMap>,
    pub(crate) end: Option<Result<Option<&'a MetadataMap>, &'a Status>>,
}

impl ReplyHead<'_> {
    /// # Errors
    /// What the client would take for a broken peer.
    pub(crate) fn check(&self) -> Result<(), SendError> {
        self.initial.map_or(Ok(()), check_entries)?;
        match self.end {
            None => Ok(()),
            Some(Ok(trailers)) => trailers.map_or(Ok(()), check_entries),
            Some(Err(status)) => check_entries(status.metadata()),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.initial.is_none_or(MetadataMap::is_empty)
            && self.end.is_none_or(|end| end.is_ok_and(|trailers| trailers.is_none_or(MetadataMap::is_empty)))
    }
}

impl Encode for ReplyHead<'_> {
    fn encoded_len(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        self.initial.map_or(0, metadata_len)
            + self.end.map_or(0, |end| match end {
                Ok(trailers) => 3 + trailers.map_or(1, metadata_len),
                Err(status) => {
                    encoded_len_varint(status.code() as u64)
                        + bytes_len(status.message().len())
                        + bytes_len(status.details().len())
                        + metadata_len(status.metadata())
                }
            })
    }

    fn encode(&self, output: &mut Output<'_>) {
        if self.is_empty() {
            return;
        }
        if let Some(initial) = self.initial {
            put_metadata(initial, output);
        }
        match self.end {
            Some(Ok(trailers)) => {
                output.put_slice(&[Code::Ok as u8, 0, 0]);
                match trailers {
                    Some(trailers) => put_metadata(trailers, output),
                    None => output.put_u8(0),
                }
            }
            Some(Err(status)) => {
                put_varint(status.code() as u64, output);
                put_bytes(status.message().as_bytes(), output);
                put_bytes(status.details(), output);
                put_metadata(status.metadata(), output);
            }
            None => {}
        }
    }
}

/// What the head of a reply held: initial metadata and the outcome, where its flags announce them.
pub(crate) fn decode_reply(
    head: &Bytes,
    initial: bool,
    end: bool,
) -> Result<(Option<Metadata>, Option<Outcome>), ConnectionError> {
    if head.is_empty() {
        return Ok((initial.then(Metadata::default), end.then(|| Ok(Metadata::default()))));
    }
    let mut rest = Rest::of(head);
    let initial = if initial { Some(rest.take_metadata()?) } else { None };
    let end = if end { Some(rest.take_outcome()?) } else { None };
    rest.ended()?;
    Ok((initial, end))
}

/// Names that the transport owns: the same set that tonic strips from what users send.
pub fn is_reserved(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "te" | "content-type"
            | "grpc-status"
            | "grpc-message"
            | "grpc-status-details-bin"
            | "grpc-message-type"
            | "grpc-timeout"
    )
}

fn entries(metadata: &MetadataMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    metadata.as_ref().iter().filter(|(name, _)| !is_reserved(name))
}

fn check_entries(metadata: &MetadataMap) -> Result<(), SendError> {
    if metadata.len() <= MAX_ENTRIES {
        return Ok(());
    }
    let count = entries(metadata).count();
    if count <= MAX_ENTRIES { Ok(()) } else { Err(SendError::TooManyEntries { count, limit: MAX_ENTRIES }) }
}

fn metadata_len(metadata: &MetadataMap) -> usize {
    if metadata.is_empty() {
        return 1;
    }
    let (count, len) = entries(metadata).fold((0u64, 0), |(count, len), (name, value)| {
        (count + 1, len + bytes_len(name.as_str().len()) + bytes_len(value.len()))
    });
    encoded_len_varint(count) + len
}

fn put_metadata(metadata: &MetadataMap, output: &mut Output<'_>) {
    if metadata.is_empty() {
        return output.put_u8(0);
    }
    put_varint(entries(metadata).count() as u64, output);
    for (name, value) in entries(metadata) {
        put_bytes(name.as_str().as_bytes(), output);
        put_bytes(value.as_bytes(), output);
    }
}

fn bytes_len(len: usize) -> usize {
    encoded_len_varint(len as u64) + len
}

fn put_bytes(bytes: &[u8], output: &mut Output<'_>) {
    put_varint(bytes.len() as u64, output);
    output.put_slice(bytes);
}

#[inline]
fn put_varint(value: u64, output: &mut Output<'_>) {
    if value < 0x80 {
        return output.put_u8(value as u8);
    }
    // Put together first, since every write looks for room.
    let mut bytes = [0; 16];
    let (mut rest, mut len) = (value, 0);
    while rest >= 0x80 {
        bytes[len] = rest as u8 | 0x80;
        rest >>= 7;
        len += 1;
    }
    bytes[len] = rest as u8;
    output.put_short(&bytes, len + 1);
}

/// What is left to read of a head.
struct Rest<'a> {
    head: &'a Bytes,
    rest: &'a [u8],
}

impl<'a> Rest<'a> {
    fn of(head: &'a Bytes) -> Self {
        Self { head, rest: head }
    }

    #[inline]
    fn take_varint(&mut self) -> Result<u64, ConnectionError> {
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        self.take_long_varint()
    }

    fn take_long_varint(&mut self) -> Result<u64, ConnectionError> {
        decode_varint(&mut self.rest)
            .map_err(|_| ConnectionError::MalformedHead("a number that does not end"))
    }

    #[inline]
    fn take_bytes(&mut self) -> Result<&'a [u8], ConnectionError> {
        let len = self.take_varint()?;
        let taken = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let (taken, rest) = taken.ok_or(ConnectionError::MalformedHead("a length past its end"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// As [`take_bytes`](Self::take_bytes), by reference to the head's memory.
    fn take_shared(&mut self) -> Result<Bytes, ConnectionError> {
        let taken = self.take_bytes()?;
        Ok(self.head.slice_ref(taken))
    }

    #[inline]
    fn take_metadata(&mut self) -> Result<Metadata, ConnectionError> {
        match self.take_varint()? {
            0 => Ok(Metadata::default()),
            count => self.take_entries(count),
        }
    }

    fn take_entries(&mut self, count: u64) -> Result<Metadata, ConnectionError> {
        if count > MAX_ENTRIES as u64 {
            return Err(ConnectionError::MalformedHead("more than 256 entries of metadata"));
        }
        let mut headers = HeaderMap::with_capacity(count as usize);
        for _ in 0..count {
            let name = HeaderName::from_bytes(self.take_bytes()?)
                .map_err(|_| ConnectionError::MalformedHead("a metadata name that HTTP does not allow"))?;
            let value = HeaderValue::from_maybe_shared(self.take_shared()?)
                .map_err(|_| ConnectionError::MalformedHead("a metadata value that HTTP does not allow"))?;
            if !is_reserved(&name) {
                headers.append(name, value);
            }
        }
        Ok(MetadataMap::from_headers(headers).into())
    }

    fn take_outcome(&mut self) -> Result<Outcome, ConnectionError> {
        let code = self.take_varint()?;
        let message = self.take_bytes()?;
        let details = self.take_shared()?;
        let metadata = self.take_metadata()?;
        // As gRPC asks of codes that a client does not know: they become UNKNOWN.
        let code = i32::try_from(code).map_or(Code::Unknown, Code::from_i32);
        if code == Code::Ok {
            return Ok(Ok(metadata));
        }
        let message = String::from_utf8_lossy(message).into_owned();
        Ok(Err(Status::with_details_and_metadata(code, message, details, metadata.into_map())))
    }

    fn ended(&self) -> Result<(), ConnectionError> {
        if self.rest.is_empty() { Ok(()) } else { Err(ConnectionError::MalformedHead("bytes after its end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Segments;

    fn bytes(encode: &dyn Encode) -> Bytes {
        let mut segments = Segments::default();
        segments.append(|output| encode.encode(output));
        let mut slices = [std::io::IoSlice::new(&[]); 4];
        let count = segments.slices(&mut slices);
        let all: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        assert_eq!(all.len(), encode.encoded_len(), "the announced length is the written one");
        all.into()
    }

    fn metadata() -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.append("x-many", "one".parse().expect("ascii"));
        metadata.append("x-many", "two".parse().expect("ascii"));
        metadata.insert_bin("x-raw-bin", tonic::metadata::MetadataValue::from_bytes(&[0, 255, 7]));
        metadata
    }

    #[test]
    fn a_request_head_survives_the_wire() {
        let mut sent = metadata();
        sent.insert("te", "trailers".parse().expect("ascii"));
        let head = RequestHead { path: "/a.B/C", timeout: Some(Duration::from_secs(9)), metadata: &sent };
        let received = ReceivedHead::decode(bytes(&head)).expect("well formed");
        assert_eq!(received.path.as_bytes(), b"/a.B/C");
        assert_eq!(received.timeout, Some(Duration::from_secs(9)));
        assert_eq!(
            received.metadata.into_map().into_headers(),
            metadata().into_headers(),
            "without the transport's own"
        );
    }

    #[test]
    fn an_empty_reply_head_costs_nothing_and_means_ok() {
        let empty = MetadataMap::new();
        let head = ReplyHead { initial: Some(&empty), end: Some(Ok(Some(&empty))) };
        assert_eq!(bytes(&head).len(), 0);
        let (initial, end) = decode_reply(&Bytes::new(), true, true).expect("well formed");
        assert!(initial.expect("announced").is_empty());
        assert!(end.expect("announced").expect("OK").is_empty());
    }

    #[test]
    fn a_status_survives_with_details_and_trailers() {
        let status = Status::with_details_and_metadata(
            Code::Aborted,
            "\t\r\nü 😈",
            Bytes::from_static(&[1, 0, 2]),
            metadata(),
        );
        let initial = metadata();
        let head = ReplyHead { initial: Some(&initial), end: Some(Err(&status)) };
        let (initial, end) = decode_reply(&bytes(&head), true, true).expect("well formed");
        assert_eq!(initial.expect("announced").into_map().into_headers(), metadata().into_headers());
        let received = end.expect("announced").expect_err("not OK");
        assert_eq!(
            (received.code(), received.message(), received.details()),
            (Code::Aborted, "\t\r\nü 😈", &[1, 0, 2][..])
        );
        assert_eq!(received.metadata().clone().into_headers(), metadata().into_headers());
    }

    #[test]
    fn every_truncation_of_a_head_is_refused() {
        let sent = metadata();
        let request = bytes(&RequestHead { path: "/a.B/C", timeout: None, metadata: &sent });
        for len in 0..request.len() {
            assert!(ReceivedHead::decode(request.slice(..len)).is_err(), "request cut at {len}");
        }
        let status = Status::with_metadata(Code::Aborted, "text", metadata());
        let reply = bytes(&ReplyHead { initial: Some(&sent), end: Some(Err(&status)) });
        for len in 1..reply.len() {
            assert!(decode_reply(&reply.slice(..len), true, true).is_err(), "reply cut at {len}");
        }
        let mut longer = request.to_vec();
        longer.push(0);
        assert!(ReceivedHead::decode(longer.into()).is_err(), "trailing bytes");
    }
}
