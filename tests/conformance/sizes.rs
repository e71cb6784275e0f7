//! Messages of every size that matters to some link, both ways, in calls of every kind.

use byway::{Code, Limits, Response, Status};
use byway_test_support::test::v1::{EchoReply, EchoRequest};

use crate::case::{all, cases, code, pattern, payload};
use crate::path::{Path, Setup};

cases![
    unary_of_every_size,
    uploads_of_every_size,
    streams_of_every_size,
    chats_of_every_size,
    the_largest_message_and_one_byte_more,
];

/// Bytes of payload. A message has up to four more, so all that is near a limit of a link is here: where large messages
/// begin to travel by themselves, where a receive of RDMA is full, where a body gets memory of its own.
const SIZES: [usize; 16] = [
    0,
    1,
    4095,
    4096,
    (16 << 10) - 5,
    (16 << 10) - 4,
    (16 << 10) - 3,
    (16 << 10) - 1,
    16 << 10,
    (16 << 10) + 1,
    (20 << 10) - 1,
    20 << 10,
    (20 << 10) + 1,
    (256 << 10) + 1,
    1 << 20,
    3 << 20,
];

async fn unary_of_every_size(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    for size in SIZES {
        // Larger and smaller replies than requests as well, since a link may learn from the last ones.
        for reply_bytes in [size, SIZES[SIZES.len() - 1] - size] {
            let request = EchoRequest { reply_bytes: reply_bytes as u32, ..payload(size) };
            let reply = world.client().unary(request).await.expect("a reply").into_inner();
            let expected = if reply_bytes == 0 { size } else { reply_bytes };
            assert_eq!(reply.payload.len(), expected, "to {size} bytes");
        }
        let reply = world.client().unary(payload(size)).await.expect("a reply").into_inner();
        assert!(reply.payload == pattern(size), "{size} bytes came back changed");
    }
}

async fn uploads_of_every_size(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    // The reply has all of them, and the client takes no more than 4 MiB.
    let sizes = &SIZES[..SIZES.len() - 1];
    let reply = world.client().collect(tokio_stream::iter(sizes.iter().map(|size| payload(*size)))).await;
    let all: Vec<u8> = sizes.iter().flat_map(|size| pattern(*size)).collect();
    assert!(reply.expect("a reply").into_inner().payload == all, "in their order");
}

async fn streams_of_every_size(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    for size in SIZES {
        let request = EchoRequest { count: 3, ..payload(size) };
        let replies = all(world.client().expand(request).await.expect("replies")).await;
        assert_eq!(replies.len(), 3);
        assert!(replies.iter().all(|reply| reply.payload == pattern(size)), "{size} bytes");
    }
}

async fn chats_of_every_size(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let requests = SIZES.iter().chain(SIZES.iter().rev()).map(|size| payload(*size));
    let replies =
        all(world.client().chat(tokio_stream::iter(requests.collect::<Vec<_>>())).await.expect("replies"));
    let sizes: Vec<_> = replies.await.iter().map(|reply| reply.payload.len()).collect();
    assert_eq!(sizes, SIZES.iter().chain(SIZES.iter().rev()).copied().collect::<Vec<_>>());
}

async fn the_largest_message_and_one_byte_more(path: &'static Path) {
    let largest = Limits::default().max_message as usize;
    let setup = Setup { max_decoding: Some(usize::MAX), ..Setup::default() };
    let world = path.open(setup).await;
    let client = world.client().max_decoding_message_size(usize::MAX);
    // Tag and length take five bytes.
    let reply = client.unary(payload(largest - 5)).await.expect("a reply").into_inner();
    assert!(reply.payload == pattern(largest - 5), "it came back changed");
    let refused = |reply: Result<Response<EchoReply>, Status>| {
        let reply = reply.map(|reply| reply.get_ref().payload.len());
        assert_eq!(code(reply), Code::ResourceExhausted);
    };
    refused(client.unary(payload(largest - 4)).await);
    let request = EchoRequest { reply_bytes: (largest - 4) as u32, ..EchoRequest::default() };
    refused(client.unary(request).await);
    world.still_works().await;
}
