//! The four kinds of calls: no, one, many and large messages, in their order.

use byway::Request;
use byway_test_support::test::v1::EchoRequest;
use tokio_stream::StreamExt;

use crate::case::{all, ask, cases, next, pattern, payload, text, upload};
use crate::path::{Path, Setup};

cases![
    empty_unary,
    unary_comes_back_unchanged,
    large_unary,
    client_streaming,
    collect_of_nothing,
    collect_of_one,
    collect_of_many,
    server_streaming,
    expand_to_nothing,
    expand_to_one,
    expand_to_many,
    ping_pong,
    empty_stream,
    chat_of_one,
    half_duplex_chat,
    replies_follow_each_other_while_requests_go_on,
    large_messages_both_ways,
    small_messages_do_not_overtake_large_ones,
    messages_without_bytes_keep_their_number_and_place,
    many_calls_at_once_get_their_own_answers,
    streams_begin_before_their_first_message,
    a_reply_may_come_before_the_requests_have_ended,
    a_stream_goes_on_when_its_client_is_dropped,
    the_handler_knows_the_connection,
];

/// Sizes of gRPC's interop tests: requests, and replies to them.
const REQUESTS: [usize; 4] = [27182, 8, 1828, 45904];
const REPLIES: [usize; 4] = [31415, 9, 2653, 58979];
const REPLY_SIZES: &str = "31415,9,2653,58979";

async fn empty_unary(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let reply = world.client().unary(EchoRequest::default()).await.expect("a reply").into_inner();
    assert_eq!(reply, Default::default());
}

async fn unary_comes_back_unchanged(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { text: "grüße ☺ 😈".to_owned(), ..payload(1000) };
    let reply = world.client().unary(request.clone()).await.expect("a reply").into_inner();
    assert_eq!((reply.text, reply.payload), (request.text, request.payload));
}

async fn large_unary(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { reply_bytes: 314_159, ..payload(271_828) };
    let reply = world.client().unary(request).await.expect("a reply").into_inner();
    assert_eq!(reply.payload.len(), 314_159);
    let reply = world.client().unary(payload(3_000_000)).await.expect("a reply").into_inner();
    assert_eq!(reply.payload, pattern(3_000_000));
}

async fn client_streaming(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let requests = tokio_stream::iter(REQUESTS.map(payload));
    let reply = world.client().collect(requests).await.expect("a reply").into_inner();
    assert_eq!(reply.payload.len(), 74922);
    assert_eq!(reply.payload, REQUESTS.map(pattern).concat());
}

async fn collect_of_nothing(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let reply = world.client().collect(tokio_stream::empty()).await.expect("a reply").into_inner();
    assert_eq!((reply.index, reply.payload.len()), (0, 0));
}

async fn collect_of_one(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let reply = world.client().collect(tokio_stream::once(text("one"))).await.expect("a reply").into_inner();
    assert_eq!((reply.index, &*reply.text), (1, "one"));
}

async fn collect_of_many(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let requests = tokio_stream::iter((0..3000).map(|index| text(&format!("{index} "))));
    let reply = world.client().collect(requests).await.expect("a reply").into_inner();
    let expected: String = (0..3000).map(|index| format!("{index} ")).collect();
    assert_eq!(reply.index, 3000);
    assert_eq!(reply.text, expected);
}

async fn server_streaming(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = ask(EchoRequest { count: 4, ..EchoRequest::default() }, &[("sizes", REPLY_SIZES)]);
    let replies = all(world.client().expand(request).await.expect("replies")).await;
    let sizes: Vec<_> = replies.iter().map(|reply| reply.payload.len()).collect();
    assert_eq!(sizes, REPLIES);
}

async fn expand_to_nothing(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    assert!(all(world.client().expand(EchoRequest::default()).await.expect("replies")).await.is_empty());
}

async fn expand_to_one(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { count: 1, ..text("one") };
    let replies = all(world.client().expand(request).await.expect("replies")).await;
    assert_eq!(replies.len(), 1);
    assert_eq!(replies[0].text, "one");
}

async fn expand_to_many(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { count: 3000, ..payload(100) };
    let replies = all(world.client().expand(request).await.expect("replies")).await;
    assert_eq!(replies.len(), 3000);
    assert!(replies.iter().zip(0..).all(|(reply, index)| reply.index == index));
    assert!(replies.iter().all(|reply| reply.payload == pattern(100)));
}

async fn ping_pong(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let (requests, stream) = upload();
    let chat = world.client().chat(ask(stream, &[("sizes", REPLY_SIZES)])).await.expect("replies");
    let mut replies = chat.into_inner();
    for (request, reply) in REQUESTS.into_iter().zip(REPLIES) {
        requests.send(payload(request)).expect("the call is open");
        assert_eq!(next(&mut replies).await.payload.len(), reply);
    }
    drop(requests);
    assert_eq!(replies.message().await.expect("no failure"), None);
}

async fn empty_stream(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    assert!(all(world.client().chat(tokio_stream::empty()).await.expect("replies")).await.is_empty());
}

async fn chat_of_one(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let replies = all(world.client().chat(tokio_stream::once(payload(5))).await.expect("replies")).await;
    assert_eq!(replies.len(), 1);
    assert_eq!(replies[0].payload, pattern(5));
}

async fn half_duplex_chat(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let (requests, stream) = upload();
    for size in REQUESTS {
        requests.send(payload(size)).expect("the call is not yet open");
    }
    drop(requests);
    let replies = all(world.client().chat(stream).await.expect("replies")).await;
    let sizes: Vec<_> = replies.iter().map(|reply| reply.payload.len()).collect();
    assert_eq!(sizes, REQUESTS);
}

async fn replies_follow_each_other_while_requests_go_on(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let requests =
        tokio_stream::iter((0..2000).map(|index| EchoRequest { text: index.to_string(), ..payload(300) }));
    let replies = all(world.client().chat(requests).await.expect("replies")).await;
    assert_eq!(replies.len(), 2000);
    assert!(replies.iter().enumerate().all(|(index, reply)| reply.text == index.to_string()));
}

async fn large_messages_both_ways(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let requests = tokio_stream::iter((0..6).map(|_| payload(1 << 20)));
    let replies = all(world.client().chat(requests).await.expect("replies")).await;
    assert_eq!(replies.len(), 6);
    assert!(replies.iter().all(|reply| reply.payload == pattern(1 << 20)));
}

async fn small_messages_do_not_overtake_large_ones(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let sizes = [200_000, 0, 1, 70_000, 3, 16_384, 16_383, 2, 500_000, 1];
    let requests: Vec<_> =
        (0..30).map(|index| EchoRequest { text: index.to_string(), ..payload(sizes[index % 10]) }).collect();
    let chat = || async {
        let requests = tokio_stream::iter(requests.clone());
        all(world.client().chat(requests).await.expect("replies")).await
    };
    // Two at once, so that frames of both mix on the way.
    let (first, second) = tokio::join!(chat(), chat());
    for replies in [first, second] {
        let order: Vec<_> = replies.iter().map(|reply| reply.text.as_str()).collect();
        assert_eq!(order, (0..30).map(|index| index.to_string()).collect::<Vec<_>>());
        assert!(replies.iter().enumerate().all(|(at, reply)| reply.payload == pattern(sizes[at % 10])));
    }
}

async fn messages_without_bytes_keep_their_number_and_place(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let requests = (0..9).map(|index| if index % 3 == 0 { payload(40_000) } else { EchoRequest::default() });
    let requests: Vec<_> = requests.collect();
    let replies =
        all(world.client().chat(tokio_stream::iter(requests.clone())).await.expect("replies")).await;
    assert_eq!(replies.len(), 9);
    assert!(replies.iter().zip(&requests).all(|(reply, request)| reply.payload == request.payload));
    let reply = world.client().collect(tokio_stream::iter(requests)).await.expect("a reply").into_inner();
    assert_eq!(reply.index, 9);
}

async fn many_calls_at_once_get_their_own_answers(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let client = world.client();
    let mut calls = tokio::task::JoinSet::new();
    for index in 0..200usize {
        let client = client.clone();
        calls.spawn(async move {
            let size = if index % 20 == 0 { 150_000 } else { index };
            let request = EchoRequest { text: index.to_string(), count: 3, ..payload(size) };
            if index % 3 == 0 {
                let replies = all(client.expand(request).await.expect("replies")).await;
                assert_eq!(replies.len(), 3);
                assert!(replies.iter().all(|reply| reply.text == index.to_string()));
            } else {
                let reply = client.unary(request).await.expect("a reply").into_inner();
                assert_eq!((reply.text, reply.payload.len()), (index.to_string(), size));
            }
        });
    }
    while let Some(call) = calls.join_next().await {
        call.expect("its own answer");
    }
}

async fn streams_begin_before_their_first_message(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = ask(EchoRequest { count: 1, ..text("later") }, &[("hold-after", "0"), ("echo-it", "now")]);
    let response = world.client().expand(request).await.expect("replies");
    assert_eq!(response.metadata().get("echo-it").expect("initial metadata"), "now");
    world.journal.release(1);
    assert_eq!(all(response).await[0].text, "later");

    let (requests, stream) = upload();
    let response = world.client().chat(stream).await.expect("replies before any request");
    requests.send(text("asked")).expect("the call is open");
    drop(requests);
    assert_eq!(all(response).await[0].text, "asked");
}

async fn a_reply_may_come_before_the_requests_have_ended(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let (requests, stream) = upload();
    requests.send(text("unread")).expect("the call is not yet open");
    let reply = world.client().collect(ask(stream, &[("deaf", "yes")])).await.expect("a reply").into_inner();
    assert_eq!(reply.index, 0);
    requests.closed().await;

    let (requests, stream) = upload();
    let replies = all(world.client().chat(ask(stream, &[("deaf", "yes")])).await.expect("replies")).await;
    assert_eq!(replies.len(), 3);
    requests.closed().await;
    world.still_works().await;
}

async fn a_stream_goes_on_when_its_client_is_dropped(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let request = ask(EchoRequest { count: 3, ..text("go on") }, &[("hold-after", "1")]);
    let client = world.client();
    let replies = client.expand(request).await.expect("replies").into_inner();
    drop(client);
    world.let_go_of_channel();
    world.journal.release(2);
    let replies: Vec<_> = replies.map(|reply| reply.expect("no failure")).collect().await;
    assert_eq!(replies.len(), 3);
}

async fn the_handler_knows_the_connection(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request: Request<_> = ask(EchoRequest::default(), &[("report", "link")]);
    let reply = world.client().unary(request).await.expect("a reply").into_inner();
    assert_eq!(reply.text, path.link);
}
