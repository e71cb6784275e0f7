//! A service for HTTP on the port, here a router of axum's: it gets HTTP/1, and what of HTTP/2 is not gRPC.

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use byway::codegen::http::Method;
use byway::{Code, Server, ServerBuilder};
use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;

use crate::beginnings::{assert_refused_or_nothing, hasty, then_silent, trickled};
use crate::harness::{Running, served, served_during, soon, story};
use crate::raw::Raw;
use crate::wire::{Answer, Wire, ask};

fn router() -> Router {
    Router::new()
        .route("/info", get(|| async { "about this" }))
        .route("/say", post(|said: String| async { said }))
        .route("/panic", get(fails))
}

async fn fails() -> &'static str {
    panic!("a page that fails")
}

fn with_router(builder: ServerBuilder) -> ServerBuilder {
    builder.http(router())
}

/// What a server answers to these bytes over HTTP/1, as text, until it closes the connection.
async fn answer(server: &Running, request: &str) -> String {
    let answer = then_silent(&server.text(), request.as_bytes()).await;
    String::from_utf8(answer).expect("text")
}

#[test]
fn http_1_is_answered_by_the_router() {
    story(async {
        let server = Running::with(with_router(Server::builder())).await;
        let client = server.client().await;
        let info = "GET /info HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let text = served_during(&client, answer(&server, info)).await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nabout this"), "{text}");

        let say =
            "POST /say HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
        let text = answer(&server, say).await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nhello"), "{text}");

        let chunked = "POST /say HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\
            connection: close\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
        let text = answer(&server, chunked).await;
        assert!(text.ends_with("\r\n\r\nhello"), "{text}");

        for (request, status) in [
            ("GET /none HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "404"),
            (
                "POST /info HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
                "405",
            ),
            ("GET /info HTTP/1.0\r\n\r\n", "200"),
            ("GET /panic HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "500"),
        ] {
            let text = answer(&server, request).await;
            assert_eq!(text.split(' ').nth(1), Some(status), "{text}");
        }
        server.stop().await;
    });
}

#[test]
fn an_http_1_connection_is_kept() {
    story(async {
        let server = Running::with(with_router(Server::builder())).await;
        let text = answer(
            &server,
            "GET /info HTTP/1.1\r\nhost: localhost\r\n\r\n\
                GET /info HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        )
        .await;
        assert_eq!(text.matches("about this").count(), 2, "{text}");
        server.stop().await;
    });
}

fn body(answer: &Answer) -> (u16, &str) {
    (answer.http.as_u16(), std::str::from_utf8(&answer.body).expect("text"))
}

/// On one connection of HTTP/2, calls go to the services and everything else to the router.
#[test]
fn http_2_that_is_not_grpc_is_answered_by_the_router() {
    story(async {
        let server = Running::with(with_router(Server::builder())).await;
        let mut wire = Wire::connect(&server.text()).await;
        let info = ask("").to("/info").method(Method::GET).without("content-type").without("te").data([]);
        let say = ask("").to("/say").with("content-type", "text/plain").data(["hello".into()]);
        let json = ask("Unary").with("content-type", "application/json").data(["{}".into()]);
        for _ in 0..2 {
            assert_eq!(body(&soon(wire.call(&info)).await.answer()), (200, "about this"));
            soon(wire.serves()).await.expect("a good call");
            assert_eq!(body(&soon(wire.call(&say)).await.answer()), (200, "hello"));
            // The path of a call alone does not make one.
            assert_eq!(body(&soon(wire.call(&json)).await.answer()).0, 404);
            // gRPC stays gRPC, whether there is such a method or not.
            let unknown = soon(wire.call(&ask("Nothing"))).await.answer();
            assert_eq!((unknown.http.as_u16(), unknown.code()), (200, Some(Code::Unimplemented)));
            let call_of_a_page = soon(wire.call(&ask("").to("/info"))).await.answer();
            assert_eq!(call_of_a_page.code(), Some(Code::Unimplemented));
        }
        served(&server.client().await).await;
        drop(wire);
        server.stop().await;
    });
}

#[test]
fn an_http_1_request_that_trickles_or_stops_is_cut_off() {
    let request = b"GET /info HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    story(async {
        let server = Running::with(with_router(hasty())).await;
        let client = server.client().await;
        let answer = served_during(&client, trickled(&server.text(), request)).await;
        assert_refused_or_nothing(&answer);
        for part in [1, 3, 10, request.len() - 1] {
            let answer = served_during(&client, then_silent(&server.text(), &request[..part])).await;
            assert_refused_or_nothing(&answer);
        }
        // One that comes whole is answered by the same server.
        let answer = then_silent(&server.text(), request).await;
        assert!(answer.ends_with(b"about this"), "{}", answer.escape_ascii());
        server.stop().await;
    });
}

/// Reads up to the end of this text.
async fn until(raw: &mut Raw, text: &[u8]) {
    let mut read = Vec::new();
    while !read.ends_with(text) {
        read.push(soon(raw.0.read_u8()).await.expect("the answer goes on"));
    }
}

#[test]
fn a_drain_lets_http_1_finish_and_closes_what_is_idle() {
    story(async {
        let (entered, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (enter, pass) = (Arc::clone(&entered), Arc::clone(&gate));
        let held = move || {
            let (enter, pass) = (Arc::clone(&enter), Arc::clone(&pass));
            async move {
                enter.add_permits(1);
                pass.acquire().await.expect("it is never closed").forget();
                "finished"
            }
        };
        let builder = Server::builder().http(router().route("/held", get(held)));
        let mut server = Running::with(builder).await;
        let mut idle = Raw::connect(&server.text()).await;
        idle.send(b"GET /info HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        until(&mut idle, b"about this").await;
        let mut busy = Raw::connect(&server.text()).await;
        busy.send(b"GET /held HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        soon(entered.acquire()).await.expect("it is never closed").forget();
        server.drain();
        assert!(idle.until_cut().await.is_empty(), "nothing follows");
        gate.add_permits(1);
        let answer = busy.until_cut().await;
        assert!(answer.ends_with(b"finished"), "{}", answer.escape_ascii());
        server.ended().await;
    });
}
