//! What a client knows of the server at the other end of a connection of HTTP/2.
//!
//! Owns [`Peer`]: what the server said first, how many calls it allows at once and how many are open, and why no more may
//! begin. It learns from the frames that pass on their way to hyper. Never: sends anything.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, watch};
use tonic::Status;

use crate::wire::{Settings, Sign};

/// Calls that are open at once where the server sets no limit.
const MAX_CALLS: usize = 65_535;

/// The server at the other end.
pub(super) struct Peer {
    /// Calls that are open.
    open: AtomicUsize,
    /// Calls that may be open.
    allowed: AtomicUsize,
    /// Callers that wait for a place.
    waiting: AtomicUsize,
    free: Notify,
    /// How large the headers of a request may be, as HTTP/2 counts them.
    max_headers: AtomicU32,
    /// Why no calls may begin any more.
    closed: OnceLock<Status>,
    heard: watch::Sender<Option<Heard>>,
}

/// What a server said first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// It speaks HTTP/2.
    Http2,
    /// Something else, which begins like this.
    Other([u8; 9]),
    /// Nothing, before the connection ended.
    Nothing,
}

/// A call that is open. Dropping it makes room for another.
pub(super) struct Place(Arc<Peer>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
        if self.0.waiting.load(Ordering::SeqCst) > 0 {
            self.0.free.notify_one();
        }
    }
}

impl Peer {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            open: AtomicUsize::new(0),
            allowed: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            free: Notify::new(),
            max_headers: AtomicU32::new(u32::MAX),
            closed: OnceLock::new(),
            heard: watch::Sender::new(None),
        })
    }

    /// Takes what a frame of the server said.
    pub(super) fn note(&self, sign: Sign) {
        match sign {
            Sign::NotHttp2(first) => self.hear(Heard::Other(first)),
            Sign::GoAway(code, text) => {
                let code = h2::Reason::from(code);
                let text = if text.is_empty() { text } else { format!(" ({text})") };
                let what = format!("the server takes no more calls on this connection: {code}{text}");
                self.close(Status::unavailable(what));
            }
            Sign::Settings(Settings { calls, headers }) => {
                let is_first = self.heard.borrow().is_none();
                if let Some(calls) = calls.or(is_first.then_some(u32::MAX)) {
                    self.allowed.store((calls as usize).min(MAX_CALLS), Ordering::SeqCst);
                    self.free.notify_waiters();
                }
                if let Some(headers) = headers {
                    self.max_headers.store(headers, Ordering::Relaxed);
                }
                self.hear(Heard::Http2);
            }
        }
    }

    /// The connection has ended.
    pub(super) fn ended(&self, status: Status) {
        self.close(status);
        self.hear(Heard::Nothing);
    }

    /// What the server says first.
    pub(super) async fn greeting(&self) -> Heard {
        let mut heard = self.heard.subscribe();
        let first = heard.wait_for(Option::is_some).await;
        first.ok().and_then(|heard| *heard).unwrap_or(Heard::Nothing)
    }

    fn hear(&self, what: Heard) {
        self.heard.send_if_modified(|heard| {
            let is_first = heard.is_none();
            heard.get_or_insert(what);
            is_first
        });
    }

    fn close(&self, status: Status) {
        let _ = self.closed.set(status);
        self.free.notify_waiters();
    }

    /// Why no calls may begin any more, if so.
    pub(super) fn closed(&self) -> Option<&Status> {
        self.closed.get()
    }

    /// How large the headers of a request may be, as HTTP/2 counts them.
    pub(super) fn max_headers(&self) -> usize {
        self.max_headers.load(Ordering::Relaxed) as usize
    }

    /// Takes a place for one more call, if there is one.
    pub(super) fn place(self: &Arc<Self>) -> Option<Place> {
        let allowed = self.allowed.load(Ordering::SeqCst);
        let taken = self
            .open
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |open| (open < allowed).then_some(open + 1));
        taken.ok().map(|_| Place(Arc::clone(self)))
    }

    /// Waits until there may be a place.
    ///
    /// # Errors
    /// Why there will be none.
    pub(super) async fn until_free(&self) -> Result<(), Status> {
        let _waiting = Waiting::new(&self.waiting);
        loop {
            let mut free = std::pin::pin!(self.free.notified());
            // From here on nothing is missed, whoever makes room or closes.
            free.as_mut().enable();
            if let Some(status) = self.closed() {
                return Err(status.clone());
            }
            if self.open.load(Ordering::SeqCst) < self.allowed.load(Ordering::SeqCst) {
                // Whoever is told may not begin a call after all, since its time is over. So the next one, if there is
                // another beside this one, looks for itself.
                if self.waiting.load(Ordering::SeqCst) > 1 {
                    self.free.notify_one();
                }
                return Ok(());
            }
            free.await;
        }
    }
}

/// Counts a caller that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Waker};

    use super::*;

    fn allowing(calls: u32) -> Arc<Peer> {
        let peer = Peer::new();
        peer.note(Sign::Settings(Settings { calls: Some(calls), headers: None }));
        peer
    }

    #[test]
    fn no_more_calls_are_open_than_the_server_allows() {
        let peer = allowing(2);
        let (first, second) = (peer.place(), peer.place());
        assert!(first.is_some() && second.is_some() && peer.place().is_none());
        drop(first);
        let third = peer.place();
        assert!(third.is_some() && peer.place().is_none());
        peer.note(Sign::Settings(Settings { calls: Some(1), headers: None }));
        drop(second);
        assert!(peer.place().is_none(), "the one that is open is as many as are allowed by now");
        drop(third);
        assert!(peer.place().is_some());
    }

    #[test]
    fn a_server_that_sets_no_limit_has_one_all_the_same() {
        let peer = Peer::new();
        assert!(peer.place().is_none(), "before it has spoken");
        peer.note(Sign::Settings(Settings::default()));
        let places: Vec<_> = std::iter::from_fn(|| peer.place()).collect();
        assert_eq!(places.len(), MAX_CALLS);
    }

    #[test]
    fn who_waits_is_told_of_a_place_and_of_the_end() {
        let cx = &mut Context::from_waker(Waker::noop());
        let peer = allowing(1);
        let place = peer.place();
        let (mut one, mut two) = (Box::pin(peer.until_free()), Box::pin(peer.until_free()));
        assert!(one.as_mut().poll(cx).is_pending() && two.as_mut().poll(cx).is_pending());
        drop(place);
        assert!(one.as_mut().poll(cx).is_ready());
        let taken = peer.place();
        assert!(taken.is_some() && two.as_mut().poll(cx).is_pending());
        peer.note(Sign::GoAway(0, "later".to_owned()));
        assert!(matches!(two.as_mut().poll(cx), std::task::Poll::Ready(Err(_))));
        assert!(peer.closed().is_some_and(|status| status.message().contains("later")));
    }

    #[test]
    fn a_place_that_is_not_taken_is_there_for_the_next_who_waits() {
        let cx = &mut Context::from_waker(Waker::noop());
        let peer = allowing(1);
        let place = peer.place();
        let (mut one, mut two) = (Box::pin(peer.until_free()), Box::pin(peer.until_free()));
        assert!(one.as_mut().poll(cx).is_pending());
        let told = Arc::new(Told(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&told));
        assert!(two.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(place);
        assert!(one.as_mut().poll(cx).is_ready());
        assert_eq!(told.0.load(Ordering::SeqCst), 1, "the first may not take it");
        assert!(two.as_mut().poll(cx).is_ready());
    }

    struct Told(AtomicUsize);

    impl std::task::Wake for Told {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}
