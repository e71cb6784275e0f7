//! The reference implementation of the echo service, which every suite calls.
//!
//! Owns what each field of a request asks for, and the [`Journal`] in which a test reads what handlers did. Metadata
//! asks for the rest: `call` names the call in the journal (else it is its method), `hold-after: N` makes the handler
//! wait for [`Journal::release`] before each reply, or each read of a request, from number N on; `echo-*` comes back as
//! initial metadata and `fail-*` with a status; `deaf` drops the requests unread; `report: names` and `report: link`
//! say in the replies' text what the handler saw; `sizes: 1,2` are the lengths of the replies' payloads by number;
//! `reserved` makes it send names that the transport owns.
//! Invariant: a handler that began is reported as finished or dropped, once.
//! Never: decides what is right; tests do.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use byway::metadata::{AsciiMetadataValue, KeyAndValueRef, MetadataMap};
use byway::{CallContext, Code, Deadline, Request, Response, Status, Streaming};
use prost::bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::{Stream, StreamExt};

use crate::test::v1::echo_server::Echo;
use crate::test::v1::{EchoReply, EchoRequest};

/// What a handler that panics on request says; test runners may want to keep it off the terminal.
pub const PANIC: &str = "a panic that was asked for";

/// What happened to a call, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Its handler began.
    Began(String),
    /// Its handler, or the stream of replies, came to its end.
    Finished(String),
    /// Its handler, or the stream of replies, was dropped before its end.
    Dropped(String),
}

/// The test's end of a [`Reference`].
pub struct Journal {
    events: mpsc::UnboundedReceiver<Event>,
    shared: Arc<Shared>,
}

impl Journal {
    /// Waits for the next event.
    pub async fn next(&mut self) -> Event {
        self.events.recv().await.expect("the service is there")
    }

    /// Waits for `event`, passing over others.
    pub async fn until(&mut self, event: Event) {
        while self.next().await != event {}
    }

    /// Events that have happened and were not read.
    pub fn unread(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    /// Lets handlers that hold go on, `times` times in all.
    pub fn release(&self, times: usize) {
        self.shared.gate.add_permits(times);
    }

    /// Streamed replies that were taken from handlers so far, whether they were delivered or not.
    pub fn replies(&self) -> watch::Receiver<usize> {
        self.shared.replies.subscribe()
    }

    /// Streamed requests that handlers have read so far.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

struct Shared {
    events: mpsc::UnboundedSender<Event>,
    gate: Semaphore,
    replies: watch::Sender<usize>,
    requests: AtomicUsize,
}

/// The service.
#[derive(Clone)]
pub struct Reference {
    shared: Arc<Shared>,
}

impl Reference {
    /// A service and its journal.
    pub fn new() -> (Self, Journal) {
        let (sender, events) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            events: sender,
            gate: Semaphore::new(0),
            replies: watch::Sender::new(0),
            requests: AtomicUsize::new(0),
        });
        (Self { shared: Arc::clone(&shared) }, Journal { events, shared })
    }

    fn begin<T>(&self, method: &str, request: &Request<T>) -> Handler {
        let text = |name| request.metadata().get(name).and_then(|value| value.to_str().ok());
        let name = text("call").unwrap_or(method).to_owned();
        self.note(Event::Began(name.clone()));
        Handler {
            hold_after: text("hold-after").and_then(|text| text.parse().ok()).unwrap_or(u32::MAX),
            deaf: text("deaf").is_some(),
            sizes: text("sizes").iter().flat_map(|text| text.split(',')).flat_map(str::parse).collect(),
            report: report(request),
            deadline: CallContext::current().and_then(|call| call.deadline()),
            failing: with_prefix(request.metadata(), "fail-"),
            initial: initial(request.metadata()),
            service: self.clone(),
            name,
            finished: false,
        }
    }

    fn note(&self, event: Event) {
        // The journal may be gone: not every test reads it.
        let _ = self.shared.events.send(event);
    }
}

/// One running handler.
struct Handler {
    service: Reference,
    name: String,
    hold_after: u32,
    deaf: bool,
    sizes: Vec<u32>,
    report: Option<String>,
    deadline: Option<Deadline>,
    initial: MetadataMap,
    failing: MetadataMap,
    finished: bool,
}

impl Handler {
    async fn hold(&self, index: u32) {
        if index >= self.hold_after {
            self.service.shared.gate.acquire().await.expect("it is never closed").forget();
        }
    }

    /// The answer to `request`, as the one with number `index` of its call.
    async fn reply(&self, request: &EchoRequest, index: u32) -> Result<EchoReply, Status> {
        if request.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(request.delay_ms.into())).await;
        }
        let (started, busy) = (Instant::now(), Duration::from_micros(request.busy_us.into()));
        while started.elapsed() < busy {
            std::hint::spin_loop();
        }
        if index >= request.fail_after {
            assert!(!request.panic, "{PANIC}");
            if request.fail_code != 0 {
                return Err(self.failure(request));
            }
        }
        let size = self.sizes.get(index as usize).copied();
        let payload = match size.unwrap_or(request.reply_bytes) {
            0 => request.payload.clone(),
            len => Bytes::from(vec![index as u8; len as usize]),
        };
        let text = match (&self.report, self.deadline) {
            (_, Some(deadline)) if request.report_deadline => deadline.remaining().as_millis().to_string(),
            (_, None) if request.report_deadline => "none".to_owned(),
            (Some(report), _) => report.clone(),
            (None, _) => request.text.clone(),
        };
        Ok(EchoReply { payload, text, index })
    }

    fn finish(&mut self, finished: bool) {
        self.finished = finished;
    }

    fn failure(&self, request: &EchoRequest) -> Status {
        Status::with_details_and_metadata(
            Code::from_i32(request.fail_code),
            request.fail_message.clone(),
            request.fail_details.clone(),
            self.failing.clone(),
        )
    }

    fn response<T>(&self, message: T) -> Response<T> {
        Response::from_parts(self.initial.clone(), message, byway::Extensions::new())
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.name);
        self.service.note(if self.finished { Event::Finished(name) } else { Event::Dropped(name) });
    }
}

/// What the replies' text says instead of the requests'.
fn report<T>(request: &Request<T>) -> Option<String> {
    match request.metadata().get("report").and_then(|value| value.to_str().ok()) {
        Some("names") => {
            let mut names: Vec<_> = request.metadata().as_ref().keys().map(|name| name.as_str()).collect();
            names.sort_unstable();
            Some(names.join(","))
        }
        Some("link") => CallContext::current().map(|call| call.connection().link.to_owned()),
        _ => None,
    }
}

fn initial(metadata: &MetadataMap) -> MetadataMap {
    let mut initial = with_prefix(metadata, "echo-");
    if metadata.contains_key("reserved") {
        for name in ["te", "content-type", "grpc-status", "grpc-message", "grpc-timeout"] {
            initial.insert(name, AsciiMetadataValue::from_static("1"));
        }
    }
    initial
}

fn with_prefix(metadata: &MetadataMap, prefix: &str) -> MetadataMap {
    let mut selected = MetadataMap::new();
    for entry in metadata.iter() {
        match entry {
            KeyAndValueRef::Ascii(key, value) if key.as_str().starts_with(prefix) => {
                selected.append(key, value.clone());
            }
            KeyAndValueRef::Binary(key, value) if key.as_str().starts_with(prefix) => {
                selected.append_bin(key, value.clone());
            }
            _ => {}
        }
    }
    selected
}

type Replies = Pin<Box<dyn Stream<Item = Result<EchoReply, Status>> + Send>>;

#[byway::async_trait]
impl Echo for Reference {
    async fn unary(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        let mut handler = self.begin("unary", &request);
        handler.hold(0).await;
        let reply = handler.reply(request.get_ref(), 0).await;
        handler.finish(true);
        Ok(handler.response(reply?))
    }

    async fn collect(&self, request: Request<Streaming<EchoRequest>>) -> Result<Response<EchoReply>, Status> {
        let mut handler = self.begin("collect", &request);
        let mut requests = (!handler.deaf).then(|| request.into_inner());
        let (mut payload, mut text, mut count) = (Vec::new(), String::new(), 0);
        while let Some(requests) = &mut requests {
            handler.hold(count).await;
            let Some(request) = requests.message().await? else { break };
            self.shared.requests.fetch_add(1, Ordering::SeqCst);
            let reply = match handler.reply(&request, count).await {
                Ok(reply) => reply,
                Err(status) => {
                    handler.finish(true);
                    return Err(status);
                }
            };
            payload.extend_from_slice(&reply.payload);
            text.push_str(&reply.text);
            count += 1;
        }
        handler.finish(true);
        Ok(handler.response(EchoReply { payload: payload.into(), text, index: count }))
    }

    type ExpandStream = Replies;

    async fn expand(&self, request: Request<EchoRequest>) -> Result<Response<Replies>, Status> {
        let handler = self.begin("expand", &request);
        let request = request.into_inner();
        let response = handler.response(());
        let many = futures_util::stream::unfold((handler, Some(0)), move |(mut handler, next)| {
            let request = request.clone();
            async move {
                let index = next?;
                let fails = request.fail_code != 0 && index >= request.fail_after;
                if index >= request.count && !fails && !request.panic {
                    handler.finish(true);
                    return None;
                }
                handler.hold(index).await;
                let reply = handler.reply(&request, index).await;
                handler.service.shared.replies.send_modify(|replies| *replies += 1);
                handler.finish(reply.is_err());
                let next = reply.is_ok().then_some(index + 1);
                Some((reply, (handler, next)))
            }
        });
        Ok(response.map(|()| Box::pin(many) as Replies))
    }

    type ChatStream = Replies;

    async fn chat(&self, request: Request<Streaming<EchoRequest>>) -> Result<Response<Replies>, Status> {
        let mut handler = self.begin("chat", &request);
        let response = handler.response(());
        if handler.deaf {
            drop(request);
            handler.finish(true);
            let few = tokio_stream::iter(0..3).map(move |index| {
                let _alive = &handler;
                Ok(EchoReply { index, ..EchoReply::default() })
            });
            return Ok(response.map(|()| Box::pin(few) as Replies));
        }
        let requests = request.into_inner();
        let many = futures_util::stream::unfold(
            (handler, requests, Some(0)),
            |(mut handler, mut requests, next)| {
                async move {
                    let index = next?;
                    handler.hold(index).await;
                    let request = match requests.message().await {
                        Ok(Some(request)) => request,
                        Ok(None) => {
                            handler.finish(true);
                            return None;
                        }
                        // The caller has gone: the handler counts as dropped.
                        Err(status) => return Some((Err(status), (handler, requests, None))),
                    };
                    handler.service.shared.requests.fetch_add(1, Ordering::SeqCst);
                    let reply = handler.reply(&request, index).await;
                    handler.service.shared.replies.send_modify(|replies| *replies += 1);
                    handler.finish(reply.is_err());
                    let next = reply.is_ok().then_some(index + 1);
                    Some((reply, (handler, requests, next)))
                }
            },
        );
        Ok(response.map(|()| Box::pin(many) as Replies))
    }
}

/// The same behind tonic's own server.
#[byway::async_trait]
impl crate::shared::test::v1::echo_server::Echo for Reference {
    async fn unary(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        Echo::unary(self, request).await
    }

    async fn collect(&self, request: Request<Streaming<EchoRequest>>) -> Result<Response<EchoReply>, Status> {
        Echo::collect(self, request).await
    }

    type ExpandStream = Replies;

    async fn expand(&self, request: Request<EchoRequest>) -> Result<Response<Replies>, Status> {
        Echo::expand(self, request).await
    }

    type ChatStream = Replies;

    async fn chat(&self, request: Request<Streaming<EchoRequest>>) -> Result<Response<Replies>, Status> {
        Echo::chat(self, request).await
    }
}
