//! Between messages and what the engine knows.
//!
//! Owns the conversions that services share. Invariant: a number that a message cannot hold becomes the largest that it
//! can, and an enum value that is not known an error.

use std::time::Duration;

use byway::Status;
use byway::metadata::{AsciiMetadataValue, MetadataMap};

use crate::engine::Cost;
use crate::error::EmbedError;
use crate::model::Side;
use crate::pb::{byway::embedding::v1 as batch, tei::v1 as tei};

/// Which end is cut off, if texts are to be cut. Both packages number the ends alike.
pub(super) fn cut(truncate: bool, direction: i32) -> Result<Option<Side>, EmbedError> {
    let side = match tei::TruncationDirection::try_from(direction) {
        Ok(tei::TruncationDirection::Right) => Side::Right,
        Ok(tei::TruncationDirection::Left) => Side::Left,
        Err(_) => {
            return Err(EmbedError::Validation(format!(
                "`truncation_direction` is {direction}; it may be 0 (right) or 1 (left)"
            )));
        }
    };
    Ok(truncate.then_some(side))
}

pub(super) fn u32_of(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn tei_metadata(cost: &Cost) -> tei::Metadata {
    tei::Metadata {
        compute_chars: u32_of(cost.chars),
        compute_tokens: u32_of(cost.tokens),
        total_time_ns: ns(cost.total),
        tokenization_time_ns: ns(cost.tokenization),
        queue_time_ns: ns(cost.queue),
        inference_time_ns: ns(cost.inference),
    }
}

pub(super) fn batch_metadata(cost: &Cost) -> batch::Metadata {
    batch::Metadata {
        compute_chars: u32_of(cost.chars),
        compute_tokens: u32_of(cost.tokens),
        total_time_ns: ns(cost.total),
        tokenization_time_ns: ns(cost.tokenization),
        queue_time_ns: ns(cost.queue),
        inference_time_ns: ns(cost.inference),
    }
}

/// The headers in which Text Embeddings Inference repeats the cost, times in whole milliseconds. It always says
/// `gpu+optimized` of what it computed on; here that is a processor.
pub(super) fn headers(cost: &Cost, metadata: &mut MetadataMap) {
    metadata.insert("x-compute-type", AsciiMetadataValue::from_static("cpu"));
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let numbers = [
        ("x-compute-time", ms(cost.total)),
        ("x-compute-characters", cost.chars as u64),
        ("x-compute-tokens", cost.tokens as u64),
        ("x-total-time", ms(cost.total)),
        ("x-tokenization-time", ms(cost.tokenization)),
        ("x-queue-time", ms(cost.queue)),
        ("x-inference-time", ms(cost.inference)),
    ];
    for (name, number) in numbers {
        metadata.insert(name, AsciiMetadataValue::from(number));
    }
}

pub(super) fn refused(error: EmbedError) -> Status {
    crate::metrics::failure(&error);
    error.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_packages_number_the_ends_alike() {
        assert_eq!(batch::TruncationDirection::Left as i32, tei::TruncationDirection::Left as i32);
        assert_eq!(batch::TruncationDirection::Right as i32, tei::TruncationDirection::Right as i32);
        assert_eq!(cut(true, tei::TruncationDirection::Left as i32), Ok(Some(Side::Left)));
        assert_eq!(cut(true, 0), Ok(Some(Side::Right)));
        assert_eq!(cut(false, 1), Ok(None));
    }

    #[test]
    fn a_direction_that_is_not_known_is_refused_even_where_nothing_is_cut() {
        for direction in [2, -1] {
            let error = cut(false, direction).expect_err("refused").to_string();
            assert!(error.contains(&format!("is {direction};")), "{error}");
        }
    }

    #[test]
    fn times_that_do_not_fit_are_the_longest_that_do() {
        let cost = Cost { total: Duration::MAX, chars: usize::MAX, ..Cost::default() };
        let metadata = tei_metadata(&cost);
        assert_eq!((metadata.total_time_ns, metadata.compute_chars), (u64::MAX, u32::MAX));
        let mut map = MetadataMap::new();
        headers(&cost, &mut map);
        assert_eq!(map.get("x-total-time").expect("it is there"), &*u64::MAX.to_string());
        assert_eq!(map.len(), 8);
    }
}
