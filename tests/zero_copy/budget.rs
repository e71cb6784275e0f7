//! What a small call may allocate, on either side.
//!
//! Owns the numbers. They are exact: one that falls is to be lowered here, one that rises wants a reason.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use byway::{Request, Response, Status, Streaming};
use byway_test_support::test::v1::echo_server::Echo;
use byway_test_support::test::v1::{EchoReply, EchoRequest};

use crate::counting::Allocations;
use crate::spy::Log;
use crate::{connect, on_a_thread, serve};

/// The payload of the reply.
const AT_CLIENT: usize = 1;

/// The payload of the request, the future that answers the call, and the handler's own, which `async_trait` makes.
const AT_SERVER: usize = 3;

const CALLS: usize = 1000;

/// What does not grow with the number of calls: read buffers that are replaced, and the lists of what the test notes.
const BESIDE: usize = CALLS / 20;

/// Sends the payload back and notes what its thread has allocated.
#[derive(Default)]
struct Counted(Mutex<Allocations>);

#[byway::async_trait]
impl Echo for Counted {
    async fn unary(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        *self.0.lock().expect("nobody panics") = Allocations::of_this_thread();
        let payload = request.into_inner().payload;
        Ok(Response::new(EchoReply { payload, ..EchoReply::default() }))
    }

    async fn collect(&self, _: Request<Streaming<EchoRequest>>) -> Result<Response<EchoReply>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    type ExpandStream = byway::codegen::BoxStream<EchoReply>;

    async fn expand(&self, _: Request<EchoRequest>) -> Result<Response<Self::ExpandStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    type ChatStream = byway::codegen::BoxStream<EchoReply>;

    async fn chat(&self, _: Request<Streaming<EchoRequest>>) -> Result<Response<Self::ChatStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}

#[test]
fn a_small_call_keeps_to_its_budget_of_allocations() {
    let log = Arc::new(Log::default());
    let counted = Arc::new(Counted::default());
    let (address, server) = serve(Arc::clone(&counted), Arc::clone(&log));
    let (at_client, at_server) = on_a_thread(async {
        let client = connect(&address, &log).await;
        let payload = Bytes::from(vec![7; 64]);
        let calls = async || {
            for _ in 0..CALLS {
                let request = EchoRequest { payload: payload.clone(), ..EchoRequest::default() };
                assert_eq!(client.unary(request).await.expect("a reply").get_ref().payload, payload);
            }
            (Allocations::of_this_thread(), *counted.0.lock().expect("nobody panics"))
        };
        // The first calls find room to be made for calls, frames and wakers.
        let before = calls().await;
        let after = calls().await;
        (after.0.since(before.0).all, after.1.since(before.1).all)
    });
    server.join().expect("the server does not fail");
    println!("{at_client} allocations at the client and {at_server} at the server in {CALLS} calls");
    let budget = |calls: usize| calls * CALLS..=calls * CALLS + BESIDE;
    assert!(budget(AT_CLIENT).contains(&at_client), "{at_client} at the client in {CALLS} calls");
    assert!(budget(AT_SERVER).contains(&at_server), "{at_server} at the server in {CALLS} calls");
}
