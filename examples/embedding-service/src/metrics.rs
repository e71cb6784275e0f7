//! What is counted, under the names that Text Embeddings Inference gives it.
//!
//! Owns the names, and the histograms' buckets. Durations are in seconds. Left out are metrics of what is not
//! here: batches of the model, and predictions. Without a recorder all of this costs next to nothing.

use ::metrics::{counter, gauge, histogram};

use crate::engine::Cost;
use crate::error::EmbedError;

/// Upper bounds of the histograms of durations, in seconds: from 15 µs, each half as large again.
pub fn duration_buckets() -> Vec<f64> {
    (0..35).map(|exponent| 1.5e-5 * 1.5f64.powi(exponent)).collect()
}

/// Upper bounds of the histogram of lengths, in tokens, for a model that takes up to `max`.
pub fn length_buckets(max: usize) -> Vec<f64> {
    let doubling = std::iter::successors(Some(1usize), |bound| bound.checked_mul(2));
    doubling.take_while(|&bound| bound < max).chain([max]).map(|bound| bound as f64).collect()
}

/// Suffix of all names of histograms of durations.
pub const DURATION_SUFFIX: &str = "_duration";

/// Name of the histogram of lengths.
pub const LENGTH: &str = "te_request_input_length";

pub(crate) fn request(method: &'static str) {
    counter!("te_request_count", "method" => method).increment(1);
    counter!("te_embed_count").increment(1);
}

pub(crate) fn success(method: &'static str, cost: &Cost) {
    counter!("te_request_success", "method" => method).increment(1);
    counter!("te_embed_success").increment(1);
    histogram!("te_request_duration").record(cost.total);
    histogram!("te_request_tokenization_duration").record(cost.tokenization);
    histogram!("te_request_queue_duration").record(cost.queue);
    histogram!("te_request_inference_duration").record(cost.inference);
    histogram!("te_embed_duration").record(cost.total);
    histogram!("te_embed_tokenization_duration").record(cost.tokenization);
    histogram!("te_embed_queue_duration").record(cost.queue);
    histogram!("te_embed_inference_duration").record(cost.inference);
}

pub(crate) fn failure(error: &EmbedError) {
    counter!("te_request_failure", "err" => error.label()).increment(1);
}

/// A request whose caller had gone when its turn came.
pub(crate) fn dropped() {
    counter!("te_request_failure", "err" => "dropped").increment(1);
}

pub(crate) fn input_length(tokens: usize) {
    histogram!(LENGTH).record(tokens as f64);
}

pub(crate) fn queued(requests: usize) {
    gauge!("te_queue_size").set(requests as f64);
}

/// Notes how many connections there are by each path; called before metrics are read.
pub fn connections() {
    let byway::Connections { rdma, tcp, grpc, .. } = byway::connections();
    for (path, count) in [("rdma", rdma), ("tcp", tcp), ("grpc", grpc)] {
        gauge!("byway_connections", "path" => path).set(count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_rise_and_end_where_they_should() {
        assert_eq!(length_buckets(100), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0]);
        assert_eq!(length_buckets(1), [1.0]);
        let durations = duration_buckets();
        assert_eq!(durations.len(), 35);
        assert!(durations.is_sorted() && durations[34] > 10.0, "{durations:?}");
    }
}
