//! Owns the proof that generated code means what its source does. That it compiles at all, with
//! every odd name and type, is the larger part of it.
//!
//! Never sends a call; that is for the suites of the crates that carry calls.

use byway::codegen::{
    Direct, Idempotency, MethodDescriptor, MethodKind, NamedService, prost, prost::Message, prost_types,
};
use byway_test_support::{FILE_DESCRIPTOR_SET, stock, test};

/// Everything that a generator can get wrong.
#[allow(unreachable_pub, reason = "generated code is public, wherever it is included")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/odd/odd.rs"));
}

/// The same with other options.
#[allow(dead_code, unreachable_pub, reason = "generated code is public, and hardly used here")]
mod varied {
    include!(concat!(env!("OUT_DIR"), "/varied/varied.rs"));
}

use generated::odd;

/// One implementation, written in tonic's words, of the echo service of byway and of tonic.
macro_rules! implement_echo {
    ($module:ident, $api:ident, $package:path) => {
        mod $module {
            use std::pin::Pin;

            use package::{EchoReply, EchoRequest, echo_server::Echo};
            use tokio_stream::{Stream, StreamExt};
            use $api::{Request, Response, Status, Streaming};
            use $package as package;

            type Replies = Pin<Box<dyn Stream<Item = Result<EchoReply, Status>> + Send>>;

            pub(super) struct Mirror;

            fn reply(request: EchoRequest, index: u32) -> EchoReply {
                EchoReply { payload: request.payload, text: request.text, index }
            }

            #[tonic::async_trait]
            impl Echo for Mirror {
                async fn unary(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
                    let request = request.into_inner();
                    if request.fail_code != 0 {
                        return Err(Status::new(request.fail_code.into(), request.fail_message));
                    }
                    Ok(Response::new(reply(request, 0)))
                }

                async fn collect(
                    &self,
                    request: Request<Streaming<EchoRequest>>,
                ) -> Result<Response<EchoReply>, Status> {
                    let mut requests = request.into_inner();
                    let mut all = EchoReply::default();
                    while let Some(request) = requests.message().await? {
                        all.text.push_str(&request.text);
                    }
                    Ok(Response::new(all))
                }

                type ExpandStream = Replies;

                async fn expand(
                    &self,
                    request: Request<EchoRequest>,
                ) -> Result<Response<Self::ExpandStream>, Status> {
                    let request = request.into_inner();
                    let replies = (0..request.count).map(move |index| Ok(reply(request.clone(), index)));
                    Ok(Response::new(Box::pin(tokio_stream::iter(replies))))
                }

                type ChatStream = Replies;

                async fn chat(
                    &self,
                    request: Request<Streaming<EchoRequest>>,
                ) -> Result<Response<Self::ChatStream>, Status> {
                    let replies = request.into_inner().map(|request| Ok(reply(request?, 0)));
                    Ok(Response::new(Box::pin(replies)))
                }
            }
        }
    };
}

implement_echo!(for_byway, byway, byway_test_support::test::v1);
implement_echo!(for_tonic, tonic, byway_test_support::stock::test::v1);

#[test]
fn an_implementation_for_tonic_serves_on_byway() {
    let byways = test::v1::echo_server::EchoServer::new(for_byway::Mirror);
    let tonics = stock::test::v1::echo_server::EchoServer::new(for_tonic::Mirror);
    fn name<S: NamedService>(_: &S) -> &'static str {
        S::NAME
    }
    assert_eq!(name(&byways), name(&tonics));
    assert_eq!(name(&byways), test::v1::echo_server::SERVICE_NAME);
}

#[test]
fn a_server_knows_its_methods() {
    let server = test::v1::echo_server::EchoServer::new(for_byway::Mirror);
    let expected = [
        MethodDescriptor::new("/test.v1.Echo/Unary", MethodKind::Unary)
            .with_idempotency(Idempotency::NoSideEffects),
        MethodDescriptor::new("/test.v1.Echo/Collect", MethodKind::ClientStreaming),
        MethodDescriptor::new("/test.v1.Echo/Expand", MethodKind::ServerStreaming),
        MethodDescriptor::new("/test.v1.Echo/Chat", MethodKind::Streaming),
    ];
    assert_eq!(server.methods(), expected);
}

#[tokio::test]
async fn a_stock_client_calls_a_generated_server_as_a_tower_service() {
    use stock::test::v1::{EchoRequest, echo_client::EchoClient};

    let server = test::v1::echo_server::EchoServer::new(for_byway::Mirror);
    let mut client = EchoClient::new(server);
    let request = |text: &str| EchoRequest { text: text.to_owned(), count: 3, ..Default::default() };
    let requests = || tokio_stream::iter([request("a"), request("b"), request("c")]);

    let reply = client.unary(request("one")).await.expect("a reply").into_inner();
    assert_eq!(reply.text, "one");
    let reply = client.collect(requests()).await.expect("a reply").into_inner();
    assert_eq!(reply.text, "abc");

    let mut replies = client.expand(request("many")).await.expect("replies").into_inner();
    for index in 0..3 {
        let reply = replies.message().await.expect("no failure").expect("another reply");
        assert_eq!((reply.text.as_str(), reply.index), ("many", index));
    }
    assert_eq!(replies.message().await.expect("no failure"), None);

    let mut replies = client.chat(requests()).await.expect("replies").into_inner();
    for text in ["a", "b", "c"] {
        let reply = replies.message().await.expect("no failure").expect("another reply");
        assert_eq!(reply.text, text);
    }
    assert_eq!(replies.message().await.expect("no failure"), None);

    let failing = EchoRequest { fail_code: 5, fail_message: "gone".to_owned(), ..Default::default() };
    let status = client.unary(failing).await.expect_err("a failure");
    assert_eq!((status.code(), status.message()), (tonic::Code::NotFound, "gone"));
}

#[tokio::test]
async fn a_path_that_is_no_method_is_unimplemented() {
    use tower_service::Service;

    let mut server = test::v1::echo_server::EchoServer::new(for_byway::Mirror);
    let request = http::Request::post("/test.v1.Echo/Nothing").body(tonic::body::Body::default());
    let response = server.call(request.expect("a request")).await.expect("an answer");
    assert_eq!(response.headers()["grpc-status"], "12");
}

#[test]
fn an_implementation_may_have_no_methods_if_there_are_stubs() {
    struct Nothing;
    impl varied::test::v1::echo_server::Echo for Nothing {}
    impl varied::odd::v1::odd_server::Odd for Nothing {}

    let server = varied::test::v1::echo_server::EchoServer::new(Nothing);
    let paths: Vec<_> = server.methods().iter().map(MethodDescriptor::path).collect();
    assert_eq!(paths, ["/Echo/Unary", "/Echo/Collect", "/Echo/Expand", "/Echo/Chat"]);
    assert_eq!(varied::test::v1::EchoReply::default().payload, Vec::<u8>::new());
}

#[test]
fn messages_of_both_generators_are_the_same_on_the_wire() {
    let byways = test::v1::EchoRequest {
        payload: vec![1, 2, 3].into(),
        text: "text".to_owned(),
        count: 4,
        ..Default::default()
    };
    let tonics = stock::test::v1::EchoRequest::decode(&*byways.encode_to_vec()).expect("the same message");
    assert_eq!(tonics.payload, byways.payload);
    assert_eq!(tonics.text, byways.text);
    assert_eq!(tonics.count, byways.count);
}

#[test]
fn bytes_alias_what_they_are_decoded_from() {
    let request = odd::v1::Type {
        blob: vec![7; 64].into(),
        blobs: [("key".to_owned(), vec![8; 64].into())].into(),
        choice: Some(odd::v1::r#type::Choice::AsBytes(vec![9; 64].into())),
        ..Default::default()
    };
    let encoded = prost::bytes::Bytes::from(request.encode_to_vec());
    let memory = encoded.as_ptr_range();
    let decoded = odd::v1::Type::decode(encoded.clone()).expect("what was encoded");
    assert_eq!(decoded, request);
    assert!(memory.contains(&decoded.blob.as_ptr()), "a field");
    assert!(memory.contains(&decoded.blobs["key"].as_ptr()), "the value of a map");
    let Some(odd::v1::r#type::Choice::AsBytes(bytes)) = decoded.choice else {
        panic!("another choice");
    };
    assert!(memory.contains(&bytes.as_ptr()), "a member of a oneof");
}

#[test]
fn defaults_of_proto2_are_kept() {
    let legacy = odd::legacy::Legacy::default();
    assert_eq!(legacy.number(), 42);
    assert_eq!(legacy.text(), "a \"quoted\" text");
    assert_eq!(legacy.mood(), odd::legacy::Mood::Good);
    assert_eq!(legacy.number, None, "a default is not sent");
}

/// What protobuf's Python runtime (grpcio-tools 1.85.1) makes of the same message, deterministically.
const MODERN: [u8; 49] = [
    0x0a, 0x00, // explicit, there though empty
    0x12, 0x01, 0x01, // implicit
    0x18, 0x03, // required
    0x20, 0x01, 0x20, 0x02, // expanded
    0x2a, 0x02, 0x01, 0x02, // packed
    0x32, 0x03, 0x0a, 0x01, 0x61, // prefixed
    0x3b, 0x0a, 0x01, 0x62, 0x3c, // delimited
    0x43, 0x0a, 0x01, 0x63, 0x44, // many_delimited
    0x4a, 0x08, 0x0a, 0x01, 0x6b, 0x12, 0x03, 0x0a, 0x01, 0x64, // map
    0x50, 0x00, // with_default, there though 0
    0x58, 0x01, // mood
    0x6b, 0x0a, 0x01, 0x65, 0x6c, // other, delimited
];

#[test]
fn features_of_an_edition_mean_on_the_wire_what_they_say() {
    use odd::editions::{Modern, Mood, modern};

    let inner = |text: &'static str| modern::Inner { payload: Some(text.into()) };
    let modern = Modern {
        explicit: Some(String::new()),
        implicit: vec![1].into(),
        required: 3,
        expanded: vec![1, 2],
        packed: vec![1, 2],
        prefixed: Some(inner("a")),
        delimited: Some(inner("b")),
        many_delimited: vec![inner("c")],
        map: [("k".to_owned(), inner("d"))].into(),
        with_default: Some(0),
        mood: Some(Mood::Bad.into()),
        choice: Some(modern::Choice::Other(inner("e"))),
    };
    assert_eq!(modern.encode_to_vec(), MODERN);
    assert_eq!(Modern::decode(&MODERN[..]).expect("a message"), modern);
    assert_eq!(Modern::default().with_default(), 7);
    assert_eq!(modern::Implicit { text: String::new() }.encoded_len(), 0);
}

#[test]
fn descriptors_are_there_for_reflection() {
    let set = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("a descriptor set");
    let names: Vec<_> = set.file.iter().map(|file| file.name()).collect();
    assert_eq!(names, ["test/v1/echo.proto"]);
    assert_eq!(set.file[0].service[0].name(), "Echo");
}
