//! The key that callers must have.
//!
//! Owns the check of the `authorization` header. Invariant: how long it takes tells nothing of the key but its length.

use std::sync::Arc;

use byway::{Interceptor, Request, Status};

/// Lets requests pass that have the key.
#[derive(Clone)]
pub(super) struct Auth {
    expected: Arc<[u8]>,
}

impl Auth {
    pub(super) fn new(key: &str) -> Self {
        Self { expected: format!("Bearer {key}").into_bytes().into() }
    }

    fn admits(&self, header: &[u8]) -> bool {
        let differences =
            header.iter().zip(&*self.expected).fold(0, |all, (left, right)| all | (left ^ right));
        header.len() == self.expected.len() && differences == 0
    }
}

impl Interceptor for Auth {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        match request.metadata().get("authorization") {
            Some(header) if self.admits(header.as_bytes()) => Ok(request),
            _ => Err(Status::unauthenticated("No valid auth token")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_is_admitted() {
        let auth = Auth::new("secret");
        assert!(auth.admits(b"Bearer secret"));
        for other in
            ["", "secret", "Bearer ", "Bearer secre", "Bearer secret!", "bearer secret", "Bearer Secret"]
        {
            assert!(!auth.admits(other.as_bytes()), "{other}");
        }
    }
}
