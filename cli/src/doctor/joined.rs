//! What a channel makes of a peer: the path that its calls would take.
//!
//! Owns one connection as any program makes it, with every step before the first call: queue pairs joined, and a probe over
//! them answered. Invariant: nothing here takes longer than its time limit, and no call is made.

use std::time::Duration;

use byway::{Channel, Path, Transport};

use super::report::{Finding, Verdict};

/// How long connecting may take; the channel's own default.
const LIMIT: Duration = Duration::from_secs(5);

const CHECK: &str = "peer queue pair";

/// The path that calls to the peer take, or why none does.
pub(super) type Joined = Result<Path, String>;

/// Connects as a channel does by default, and closes the connection.
pub(super) fn join(name: &str) -> Joined {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("there is no runtime: {error}"))?;
    let builder = Channel::builder(name).transport(Transport::Auto).connect_timeout(LIMIT);
    let channel = runtime.block_on(builder.connect()).map_err(|error| error.to_string())?;
    Ok(channel.path())
}

/// Whether calls go by RDMA.
pub(super) fn is_rdma(joined: &Joined) -> bool {
    matches!(joined, Ok(Path::Rdma { .. }))
}

/// Why they do not.
pub(super) fn refusal(joined: &Joined) -> String {
    match joined {
        Ok(
            Path::Tcp { why_not_better: Some(reason) }
            | Path::Unix { why_not_better: Some(reason) }
            | Path::Grpc { why_not_better: Some(reason) },
        ) => reason.clone(),
        // Nothing else asks for a transport here.
        Ok(path) => format!("BYWAY_TRANSPORT asks for {path}"),
        Err(error) => error.clone(),
    }
}

/// The line of the report; `None` when there was nobody to connect to.
pub(super) fn finding(joined: Option<&Joined>) -> Finding {
    match joined {
        None => Finding::new(CHECK, Verdict::Skipped, "there is no hello"),
        Some(Ok(path @ Path::Rdma { .. })) => {
            let evidence = format!("calls go by {path}: queue pairs were joined, and a probe came back");
            Finding::new(CHECK, Verdict::Ok, evidence)
        }
        Some(Ok(path)) => {
            let kind = path.to_string();
            let kind = kind.split(' ').next().unwrap_or_default();
            let evidence = format!("calls go by {kind}: {}", refusal(&Ok(path.clone())));
            Finding::new(CHECK, Verdict::Fail, evidence)
        }
        Some(Err(error)) => Finding::new(CHECK, Verdict::Fail, error.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_says_what_it_is_and_why_not_a_better_one() {
        let reason = || Some("the server offers no RDMA".to_owned());
        let table = [
            (
                Ok(Path::Rdma { device: "rxe0 port 1".into() }),
                Verdict::Ok,
                "calls go by rdma (rxe0 port 1): ",
            ),
            (
                Ok(Path::Tcp { why_not_better: reason() }),
                Verdict::Fail,
                "calls go by tcp: the server offers no RDMA",
            ),
            (
                Ok(Path::Tcp { why_not_better: None }),
                Verdict::Fail,
                "calls go by tcp: BYWAY_TRANSPORT asks for tcp",
            ),
            (
                Ok(Path::Grpc { why_not_better: reason() }),
                Verdict::Fail,
                "calls go by grpc: the server offers no RDMA",
            ),
            (Err("nobody is there".into()), Verdict::Fail, "nobody is there"),
        ];
        for (joined, verdict, evidence) in table {
            let found = finding(Some(&joined));
            assert_eq!(found.verdict, verdict);
            assert!(found.evidence.starts_with(evidence), "{}", found.evidence);
            assert_eq!(is_rdma(&joined), verdict == Verdict::Ok);
        }
        assert_eq!(finding(None).verdict, Verdict::Skipped);
    }
}
