//! A tower service that ends with trailing metadata and status OK, which a handler cannot do in tonic's traits.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use byway::codegen::http::{HeaderMap, HeaderValue, Request, Response};
use byway::codegen::tonic::body::Body;
use byway::codegen::{NamedService, Service};
use byway_test_support::test::v1::EchoReply;
use http_body::Frame;
use prost::Message;

pub(crate) const TRAILING: &str = "test.v1.Trailing";

/// Answers every call with one message, then trailers.
#[derive(Clone)]
pub(crate) struct Trailing;

impl NamedService for Trailing {
    const NAME: &'static str = TRAILING;
}

impl Service<Request<Body>> for Trailing {
    type Response = Response<Frames>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Frames>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let message = EchoReply { text: "the only one".to_owned(), ..EchoReply::default() }.encode_to_vec();
        let mut framed = BytesMut::new();
        framed.put_u8(0);
        framed.put_u32(message.len() as u32);
        framed.put_slice(&message);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        trailers.append("trail", HeaderValue::from_static("one"));
        trailers.append("trail", HeaderValue::from_static("two"));
        trailers.append("trail-bin", HeaderValue::from_static("AP8"));
        let frames = [Frame::data(framed.freeze()), Frame::trailers(trailers)];
        let mut response = Response::new(Frames(frames.into()));
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        response.headers_mut().insert("lead", HeaderValue::from_static("zero"));
        ready(Ok(response))
    }
}

/// A body that yields these frames.
pub(crate) struct Frames(VecDeque<Frame<Bytes>>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}
