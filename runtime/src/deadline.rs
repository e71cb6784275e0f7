//! When a call must be over.
//!
//! Owns [`Deadline`]: a point in time on this machine's monotonic clock, and its two wire forms (microseconds
//! left, and gRPC's `grpc-timeout`). Never: compares clocks of two machines; only the time left travels.

use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

/// gRPC's name for the time left, in metadata.
pub const TIMEOUT_HEADER: &str = "grpc-timeout";

/// The point in time at which a call ends with `DEADLINE_EXCEEDED`.
///
/// A handler finds its own by [`CallContext::current`](crate::CallContext::current).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// `timeout` from now. `None` when that is too far away to be a point in time.
    pub fn after(timeout: Duration) -> Option<Self> {
        Instant::now().checked_add(timeout).map(Self)
    }

    /// Time left; zero when it has passed.
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// The point in time itself.
    pub fn at(&self) -> Instant {
        self.0
    }

    /// The status of a call that reached it.
    pub fn status() -> Status {
        Status::deadline_exceeded("the deadline of the call has passed")
    }

    /// Takes the time-out that `Request::set_timeout` put into `metadata`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` when it is not a gRPC timeout.
    pub fn take(metadata: &mut MetadataMap) -> Result<Option<Duration>, Status> {
        if metadata.is_empty() {
            return Ok(None);
        }
        let Some(value) = metadata.get(TIMEOUT_HEADER).cloned() else { return Ok(None) };
        if metadata.len() == 1 {
            // Cheaper than taking the entry out, and the common case.
            *metadata = MetadataMap::new();
        } else {
            metadata.remove(TIMEOUT_HEADER);
        }
        let timeout = value.to_str().ok().and_then(parse_timeout).ok_or_else(|| {
            Status::new(Code::InvalidArgument, format!("{TIMEOUT_HEADER} {value:?} is not a number of at most 8 digits and one of H, M, S, m, u, n"))
        })?;
        Ok(Some(timeout))
    }
}

impl From<Instant> for Deadline {
    fn from(at: Instant) -> Self {
        Self(at)
    }
}

/// Reads `grpc-timeout`: at most eight digits and a unit.
pub fn parse_timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let digits = &text[..text.len() - unit.len_utf8()];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        'H' => Duration::from_secs(value * 3600),
        'M' => Duration::from_secs(value * 60),
        'S' => Duration::from_secs(value),
        'm' => Duration::from_millis(value),
        'u' => Duration::from_micros(value),
        'n' => Duration::from_nanos(value),
        _ => return None,
    })
}

/// Writes `grpc-timeout` in the finest unit that eight digits can hold, rounded up.
pub fn format_timeout(timeout: Duration) -> String {
    const LARGEST: u128 = 99_999_999;
    let nanos = timeout.as_nanos();
    let units = [('n', 1), ('u', 1_000), ('m', 1_000_000), ('S', 1_000_000_000), ('M', 60_000_000_000)];
    for (unit, size) in units {
        let value = nanos.div_ceil(size);
        if value <= LARGEST {
            return format!("{value}{unit}");
        }
    }
    format!("{}H", nanos.div_ceil(3_600_000_000_000).min(LARGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        assert_eq!(parse_timeout("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse_timeout("2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse_timeout("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(parse_timeout("0m"), Some(Duration::ZERO));
        assert_eq!(parse_timeout("7u"), Some(Duration::from_micros(7)));
        for bad in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", "123456789S", "1é", " 1S"] {
            assert_eq!(parse_timeout(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_written_timeout_is_never_shorter_than_what_it_says() {
        for nanos in [0, 1, 99_999_999, 100_000_000, 123_456_789_012, u64::MAX] {
            let timeout = Duration::from_nanos(nanos);
            let read = parse_timeout(&format_timeout(timeout)).expect("own format");
            assert!(read >= timeout, "{timeout:?} became {read:?}");
        }
    }

    #[test]
    fn what_set_timeout_writes_is_taken_out_of_the_metadata() {
        let mut request = tonic::Request::new(());
        request.set_timeout(Duration::from_secs(5));
        assert_eq!(Deadline::take(request.metadata_mut()).expect("valid"), Some(Duration::from_secs(5)));
        assert!(request.metadata().is_empty());
        request.metadata_mut().insert("x-other", "kept".parse().expect("ascii"));
        request.set_timeout(Duration::from_secs(6));
        assert_eq!(Deadline::take(request.metadata_mut()).expect("valid"), Some(Duration::from_secs(6)));
        assert_eq!(request.metadata().len(), 1);
    }
}
