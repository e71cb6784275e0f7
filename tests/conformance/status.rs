//! How calls end: every code, message and details, before and after messages.

use byway::runtime::{CallOptions, MethodDescriptor, MethodKind, client};
use byway::{Code, Request};
use byway_test_support::test::v1::{EchoReply, EchoRequest};
use tokio_stream::StreamExt;

use crate::case::{cases, code, text, until_failure};
use crate::path::{Path, Setup};

cases![
    every_code,
    a_code_that_nobody_knows_is_unknown,
    special_message,
    details,
    a_long_message,
    a_stream_fails_before_its_first_message,
    a_stream_fails_after_messages,
    a_chat_fails_after_messages,
    an_upload_fails_in_the_middle,
    unimplemented_method,
    unimplemented_service,
    several_requests_to_a_method_that_takes_one,
    no_request_to_a_method_that_takes_one,
    several_replies_to_a_unary_call,
    no_reply_to_a_unary_call,
    a_message_that_is_none_is_refused,
];

fn failing(fail_code: Code, message: &str) -> EchoRequest {
    EchoRequest { fail_code: fail_code.into(), fail_message: message.to_owned(), ..text("not to be seen") }
}

async fn every_code(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    for number in 1..=16 {
        let message = format!("number {number}");
        let request = failing(Code::from_i32(number), &message);
        let status = world.client().unary(request.clone()).await.expect_err("a failure");
        assert_eq!((status.code() as i32, status.message()), (number, &*message));
        let failed = world.client().collect(tokio_stream::once(request)).await;
        assert_eq!(code(failed) as i32, number);
    }
    world.still_works().await;
}

async fn a_code_that_nobody_knows_is_unknown(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { fail_code: 299, ..failing(Code::Ok, "strange") };
    let status = world.client().unary(request).await.expect_err("a failure");
    assert_eq!((status.code(), status.message()), (Code::Unknown, "strange"));
}

async fn special_message(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let message = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";
    let status = world.client().unary(failing(Code::Unknown, message)).await.expect_err("a failure");
    assert_eq!((status.code(), status.message()), (Code::Unknown, message));
    let request = EchoRequest { count: 2, fail_after: 1, ..failing(Code::Unknown, message) };
    let (_, status) = until_failure(world.client().expand(request).await.expect("replies")).await;
    assert_eq!((status.code(), status.message()), (Code::Unknown, message));
}

async fn details(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let request = EchoRequest { fail_details: every_byte.clone().into(), ..failing(Code::Aborted, "") };
    let status = world.client().unary(request.clone()).await.expect_err("a failure");
    assert_eq!((status.code(), status.message()), (Code::Aborted, ""));
    assert_eq!(status.details(), every_byte);
    let request = EchoRequest { count: 2, fail_after: 1, ..request };
    let (_, status) = until_failure(world.client().expand(request).await.expect("replies")).await;
    assert_eq!(status.details(), every_byte);
}

async fn a_long_message(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let message = "long ".repeat(1000);
    let status = world.client().unary(failing(Code::DataLoss, &message)).await.expect_err("a failure");
    assert_eq!((status.code(), status.message()), (Code::DataLoss, &*message));
}

async fn a_stream_fails_before_its_first_message(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { count: 3, ..failing(Code::ResourceExhausted, "none left") };
    // Whether initial metadata came before is the server's choice.
    let status = match world.client().expand(request).await {
        Err(status) => status,
        Ok(response) => {
            let (replies, status) = until_failure(response).await;
            assert!(replies.is_empty());
            status
        }
    };
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "none left"));
    world.still_works().await;
}

async fn a_stream_fails_after_messages(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    for fail_after in [1, 2, 50] {
        let request =
            EchoRequest { count: 100, reply_bytes: 5000, fail_after, ..failing(Code::Internal, "broke") };
        let (replies, status) = until_failure(world.client().expand(request).await.expect("replies")).await;
        assert_eq!(replies.len(), fail_after as usize, "what came before the failure is delivered");
        assert_eq!((status.code(), status.message()), (Code::Internal, "broke"));
    }
}

async fn a_chat_fails_after_messages(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let requests = [text("a"), text("b"), failing(Code::OutOfRange, "no more"), text("never read")];
    // The requests have no end: the failure must not wait for it.
    let requests = tokio_stream::iter(requests).chain(tokio_stream::pending());
    let (replies, status) = until_failure(world.client().chat(requests).await.expect("replies")).await;
    assert_eq!(replies.iter().map(|reply| &*reply.text).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((status.code(), status.message()), (Code::OutOfRange, "no more"));
}

async fn an_upload_fails_in_the_middle(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let requests = tokio_stream::iter([text("a"), failing(Code::InvalidArgument, "not this")]);
    let requests = requests.chain(tokio_stream::pending());
    let status = world.client().collect(requests).await.expect_err("a failure");
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "not this"));
    world.still_works().await;
}

/// Calls a method, whatever kind the server takes it for, as one with many requests and one reply.
async fn requests_to(world: &crate::path::World, path: &'static str, requests: &[EchoRequest]) -> Code {
    let method = MethodDescriptor::new(path, MethodKind::ClientStreaming);
    let requests = Request::new(tokio_stream::iter(requests.to_vec()));
    let options = CallOptions::default();
    code(client::client_streaming::<_, _, EchoReply>(&world.channel, &method, options, requests).await)
}

async fn one_request_to(world: &crate::path::World, path: &'static str, request: EchoRequest) -> Code {
    let method = MethodDescriptor::new(path, MethodKind::Unary);
    let (options, request) = (CallOptions::default(), Request::new(request));
    code(client::unary::<_, _, EchoReply>(&world.channel, &method, options, request).await)
}

async fn unimplemented_method(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let nothing = EchoRequest::default();
    assert_eq!(one_request_to(&world, "/test.v1.Echo/Nothing", nothing.clone()).await, Code::Unimplemented);
    assert_eq!(requests_to(&world, "/test.v1.Echo/Nothing", &[nothing]).await, Code::Unimplemented);
    world.still_works().await;
}

async fn unimplemented_service(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    for path in ["/test.v1.Nobody/Unary", "/Unary", "/", "/test.v1.Echo/"] {
        let code = one_request_to(&world, path, EchoRequest::default()).await;
        assert_eq!(code, Code::Unimplemented, "{path}");
    }
    world.still_works().await;
}

async fn several_requests_to_a_method_that_takes_one(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let requests = [text("a"), text("b")];
    assert_eq!(requests_to(&world, "/test.v1.Echo/Unary", &requests).await, Code::Unimplemented);
    world.still_works().await;
}

async fn no_request_to_a_method_that_takes_one(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    assert_eq!(requests_to(&world, "/test.v1.Echo/Unary", &[]).await, Code::Unimplemented);
    assert_eq!(requests_to(&world, "/test.v1.Echo/Expand", &[]).await, Code::Unimplemented);
    world.still_works().await;
}

async fn several_replies_to_a_unary_call(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { count: 2, ..EchoRequest::default() };
    assert_eq!(one_request_to(&world, "/test.v1.Echo/Expand", request).await, Code::Unimplemented);
    world.still_works().await;
}

async fn no_reply_to_a_unary_call(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { count: 0, ..EchoRequest::default() };
    assert_eq!(one_request_to(&world, "/test.v1.Echo/Expand", request).await, Code::Unimplemented);
    world.still_works().await;
}

/// A field that claims to be longer than its message.
#[derive(Clone, PartialEq, prost::Message)]
struct Garbage {
    #[prost(fixed64, tag = "2")]
    not_a_text: u64,
}

async fn a_message_that_is_none_is_refused(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let method = MethodDescriptor::new("/test.v1.Echo/Unary", MethodKind::Unary);
    let request = Request::new(Garbage { not_a_text: 1 });
    let failed =
        client::unary::<_, _, EchoReply>(&world.channel, &method, CallOptions::default(), request).await;
    // gRPC's implementations say INTERNAL for what they cannot decode.
    assert_eq!(code(failed), Code::Internal);
    world.still_works().await;
}
