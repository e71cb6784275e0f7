//! Small messages: sends whose bytes are in the request itself, into receives that are posted beforehand.
//!
//! The client keeps its window full: each answer lets the next message go, and all that go at once are posted at once.

use std::collections::VecDeque;
use std::time::Instant;

use byway_rdma::nic::{self, Kind, Operation, Piece, Request, WorkId};

use super::super::Payload;
use super::end::End;
use crate::Failure;
use crate::closed_loop::Samples;
use crate::workload::Budget;

fn message(bytes: &[u8]) -> Request<'_> {
    Request::unsignaled(WorkId(0), Operation::Send { immediate: None }, nic::Payload::Inline(bytes))
}

/// Sends back every message, those that came together together.
pub(super) async fn answer(end: &mut End) -> Result<(), Failure> {
    let (mut completions, mut messages) = (Vec::new(), Vec::new());
    loop {
        end.completions(&mut completions).await?;
        messages.extend(completions.drain(..).filter_map(received));
        end.post(&mut messages.iter().map(|buffer| message(buffer.filled())).collect())?;
        messages.drain(..).for_each(|buffer| end.give_back(buffer));
        end.post_used()?;
    }
}

fn received(completion: nic::Completion) -> Option<byway_rdma::memory::Buffer> {
    match (completion.kind, completion.payload) {
        (Kind::Receive, nic::Payload::One(Piece::Owned(buffer))) => Some(buffer),
        _ => None,
    }
}

pub(super) async fn run(
    end: &mut End,
    payload: &Payload,
    window: usize,
    budget: Budget,
) -> Result<Samples, Failure> {
    let mut latencies = Vec::with_capacity(budget.calls);
    let (mut completions, mut batch) = (Vec::new(), Vec::with_capacity(window));
    // When each unanswered message was sent; answers come in that order.
    let mut sent: VecDeque<Instant> = VecDeque::with_capacity(window);
    let mut left = budget.calls;
    let began = Instant::now();
    let until = began + budget.time;
    let mut last = began;
    loop {
        while last < until && left > 0 && sent.len() < window {
            batch.push(message(&payload.0));
            sent.push_back(last);
            left -= 1;
        }
        end.post(&mut batch)?;
        end.post_used()?;
        if sent.is_empty() {
            return Samples::new(last - began, latencies);
        }
        end.completions(&mut completions).await?;
        last = Instant::now();
        for answer in completions.drain(..).filter_map(received) {
            payload.check(answer.filled())?;
            latencies.push(last - sent.pop_front().ok_or("an answer to nothing")?);
            end.give_back(answer);
        }
    }
}
