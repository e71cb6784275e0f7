//! What a case is, how it runs, and the few words that cases share.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use byway::{Code, Request, Response, Status, Streaming};
use byway_test_support::reference::{Event, PANIC};
use byway_test_support::test::v1::{EchoReply, EchoRequest};
use libtest_mimic::Failed;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio_stream::{Stream, StreamExt};

use crate::path::{Path, World};

/// After this long a case hangs. None takes more than a second or two, but where a device is emulated, and the processor
/// with it.
const HANGS: Duration = Duration::from_secs(20);
const HANGS_EMULATED: Duration = Duration::from_secs(120);

/// One story, told over any path.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) story: fn(&'static Path) -> Pin<Box<dyn Future<Output = ()>>>,
}

/// The cases that these functions are.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn cases() -> Vec<$crate::case::Case> {
            vec![$($crate::case::Case { name: stringify!($name), story: |path| Box::pin($name(path)) }),*]
        }
    };
}
pub(crate) use cases;

impl Case {
    /// Runs on each kind of runtime.
    pub(crate) fn run(self, path: &'static Path) -> Result<(), Failed> {
        self.run_on("one thread", path, || Builder::new_current_thread().enable_all().build())?;
        self.run_on("two workers", path, || {
            Builder::new_multi_thread().worker_threads(2).enable_all().build()
        })
    }

    fn run_on(
        self,
        kind: &'static str,
        path: &'static Path,
        runtime: fn() -> std::io::Result<Runtime>,
    ) -> Result<(), Failed> {
        let (ended, end) = mpsc::channel();
        let name = format!("{}::{} on {kind}", path.name, self.name);
        let story = move || {
            let runtime = runtime().expect("a runtime");
            runtime.block_on((self.story)(path));
            runtime.shutdown_background();
            ended.send(()).expect("somebody waits");
        };
        std::thread::Builder::new().name(name).spawn(story).expect("a thread");
        match end.recv_timeout(if path.name == "rdma_device" { HANGS_EMULATED } else { HANGS }) {
            Ok(()) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(format!("on {kind}: hangs").into()),
            Err(RecvTimeoutError::Disconnected) => Err(format!("on {kind}: see above").into()),
        }
    }
}

/// Keeps panics that a case asks a handler for off the terminal.
pub(crate) fn hide_intended_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(PANIC) {
            report(panic);
        }
    }));
}

/// A message with this text.
pub(crate) fn text(text: &str) -> EchoRequest {
    EchoRequest { text: text.to_owned(), ..EchoRequest::default() }
}

/// A message with this many bytes, which differ.
pub(crate) fn payload(len: usize) -> EchoRequest {
    EchoRequest { payload: pattern(len), ..EchoRequest::default() }
}

/// Bytes in which a shift or a swap shows: a block repeated whose length is prime.
pub(crate) fn pattern(len: usize) -> Bytes {
    static BLOCK: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..65_521usize).map(|index| (index * 31 + index / 251) as u8).collect());
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        bytes.extend_from_slice(&BLOCK[..BLOCK.len().min(len - bytes.len())]);
    }
    bytes.into()
}

/// A request with metadata, which tells the reference service how to behave.
pub(crate) fn ask<T>(message: T, metadata: &[(&'static str, &str)]) -> Request<T> {
    let mut request = Request::new(message);
    for (name, value) in metadata {
        request.metadata_mut().append(*name, value.parse().expect("ASCII"));
    }
    request
}

/// Requests that are sent while the call goes on.
pub(crate) fn upload() -> (UnboundedSender<EchoRequest>, Upload) {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    (sender, Upload(receiver))
}

/// The client's end of an [`upload`]. The sender sees when it is dropped.
pub(crate) struct Upload(UnboundedReceiver<EchoRequest>);

impl Stream for Upload {
    type Item = EchoRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<EchoRequest>> {
        self.0.poll_recv(cx)
    }
}

/// Every reply of a stream that ends with OK.
pub(crate) async fn all(response: Response<Streaming<EchoReply>>) -> Vec<EchoReply> {
    response.into_inner().map(|reply| reply.expect("no failure")).collect().await
}

/// The next reply of a stream that goes on.
pub(crate) async fn next(replies: &mut Streaming<EchoReply>) -> EchoReply {
    replies.message().await.expect("no failure").expect("another reply")
}

/// Replies of a stream that fails, and its status.
pub(crate) async fn until_failure(response: Response<Streaming<EchoReply>>) -> (Vec<EchoReply>, Status) {
    let (mut replies, mut stream) = (Vec::new(), response.into_inner());
    loop {
        match stream.message().await {
            Ok(Some(reply)) => replies.push(reply),
            Ok(None) => panic!("the stream ended with OK after {} replies", replies.len()),
            Err(status) => return (replies, status),
        }
    }
}

/// The code that a call failed with.
pub(crate) fn code<T: Debug>(result: Result<T, Status>) -> Code {
    result.expect_err("a failure").code()
}

impl World {
    /// Shows that the connection serves calls.
    pub(crate) async fn still_works(&self) {
        let reply = self.client().unary(text("still here")).await.expect("a reply");
        assert_eq!(reply.get_ref().text, "still here");
    }

    /// Waits until the handler of the call with this name was dropped, if it began at all, and says whether it did.
    pub(crate) async fn gone_if_begun(&mut self, name: &str) -> bool {
        let (began, dropped) = (Event::Began(name.to_owned()), Event::Dropped(name.to_owned()));
        let seen = self.journal.unread();
        if seen.contains(&began) && !seen.contains(&dropped) {
            self.journal.until(dropped).await;
        }
        seen.contains(&began)
    }
}
