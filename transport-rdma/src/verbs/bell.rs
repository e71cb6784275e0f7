//! Sleeping on a completion channel within a tokio runtime.
//!
//! Owns a duplicate of the channel's descriptor, which the runtime watches. Never: reads from it.
#![expect(unsafe_code, reason = "the runtime watches a descriptor by its number")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::nic::VerbsNic;
use crate::bell::Rings;

impl Rings for VerbsNic {
    type Bell = AsyncFd<OwnedFd>;

    fn bell(&self) -> io::Result<Self::Bell> {
        let descriptor = self.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` names the same open descriptor until it is dropped, which `AsyncFd` does last.
        let registered = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        registered.map_err(Into::into)
    }

    fn poll_rang(&self, bell: &mut Self::Bell, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // All wake-ups are taken next, so what is readable now is not afterwards.
        ready!(bell.poll_read_ready(cx))?.clear_ready();
        Poll::Ready(Ok(()))
    }
}
