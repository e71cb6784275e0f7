//! The table of mistakes that a client can make, and how a row of it is judged.
//!
//! Invariants: a row that hangs fails by its name, and does not keep the others from their turn; after each row the same
//! connection serves a good call.

use std::time::Duration;

use byway::Code;
use h2::Reason;

use crate::served::Served;
use crate::wire::{Answer, Ask, Ended};

/// Longest that a row may take. Only a hang takes this long.
const ROW_LIMIT: Duration = Duration::from_secs(10);

/// What may hold for an answer.
type Holds = fn(&Answer) -> bool;

/// One mistake, or what may look like one.
pub(crate) struct Row {
    name: String,
    ask: Ask,
    expect: Expect,
}

/// What must come of it.
#[derive(Clone, Copy)]
pub(crate) struct Expect {
    /// HTTP statuses of the answer.
    http: &'static [u16],
    /// Codes that the call may end with; none when the answer's HTTP status says everything.
    codes: &'static [Code],
    /// What the status message tells.
    telling: &'static str,
    /// Whether a reset of the stream is an answer too.
    or_reset: bool,
    /// How many messages come.
    messages: usize,
    /// What else holds, and what to call it.
    also: Option<(&'static str, Holds)>,
}

/// The call ends with this status, in an answer of HTTP status 200.
pub(crate) fn status(codes: &'static [Code], telling: &'static str) -> Expect {
    Expect { http: &[200], codes, telling, or_reset: false, messages: 0, also: None }
}

/// The head is refused before any call begins; grpc-go has HTTP status 400 then.
pub(crate) fn malformed(codes: &'static [Code], telling: &'static str) -> Expect {
    Expect { http: &[200, 400], ..status(codes, telling) }
}

/// An answer to whoever does not speak gRPC.
pub(crate) fn http(http: &'static [u16]) -> Expect {
    Expect { http, ..status(&[], "") }
}

/// A good answer.
pub(crate) fn replies(messages: usize) -> Expect {
    Expect { messages, ..status(&[Code::Ok], "") }
}

impl Expect {
    pub(crate) fn or_http(self, http: &'static [u16]) -> Self {
        Self { http, ..self }
    }

    pub(crate) fn or_reset(self) -> Self {
        Self { or_reset: true, ..self }
    }

    pub(crate) fn after(self, messages: usize) -> Self {
        Self { messages, ..self }
    }

    pub(crate) fn also(self, what: &'static str, holds: Holds) -> Self {
        Self { also: Some((what, holds)), ..self }
    }

    /// What is wrong with how a row ended.
    fn judge(self, ended: &Ended) -> Result<(), String> {
        let answer = match ended {
            Ended::Answered(answer) => answer,
            Ended::Reset(reason) if self.or_reset && *reason != Reason::NO_ERROR => return Ok(()),
            other => return Err(format!("{other:?}")),
        };
        let wrong = |what: &str| Err(format!("{what}: {answer:?}"));
        if !self.http.contains(&answer.http.as_u16()) {
            return wrong("another HTTP status");
        }
        // With another HTTP status than these it says everything.
        if !self.codes.is_empty() && matches!(answer.http.as_u16(), 200 | 400) {
            let content_type = answer.head.get("content-type").map_or(&b""[..], |value| value.as_bytes());
            if !content_type.starts_with(b"application/grpc") {
                return wrong("another content type");
            }
            if !answer.code().is_some_and(|code| self.codes.contains(&code)) {
                return wrong("another status");
            }
            if !answer.status_message().contains(self.telling) {
                return wrong(&format!("a message without \"{}\"", self.telling));
            }
            let messages = answer.messages().len();
            if messages != self.messages {
                return wrong(&format!("{messages} messages"));
            }
        }
        match self.also {
            Some((what, holds)) if !holds(answer) => wrong(&format!("not {what}")),
            _ => Ok(()),
        }
    }
}

/// A row.
pub(crate) fn row(name: impl Into<String>, ask: Ask, expect: Expect) -> Row {
    Row { name: name.into(), ask, expect }
}

/// Runs every row against one server, and fails with all that are wrong.
pub(crate) fn check(rows: impl IntoIterator<Item = Row>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let server = Served::start().await;
        let (mut wrong, mut count) = (Vec::new(), 0);
        let mut wire = server.wire().await;
        for row in rows {
            count += 1;
            let story = async {
                row.expect.judge(&wire.call(&row.ask).await)?;
                wire.serves().await.map_err(|why| format!("then {why}"))
            };
            let ended = tokio::time::timeout(ROW_LIMIT, story).await;
            if let Err(why) = ended.unwrap_or_else(|_| Err("hangs".to_owned())) {
                wrong.push(format!("\n  {}: {why}", row.name));
                wire = server.wire().await;
            }
        }
        drop(wire);
        server.stop().await;
        assert!(wrong.is_empty(), "{} of {count} rows are wrong:{}", wrong.len(), wrong.concat());
    });
}
