//! How fast the simulator is: a transport's ten thousand schedules should cost less than its own work.

use std::time::Instant;

use byway_rdma::nic::{Operation, Payload, Receive, RecvQueue, Request, WorkId};
use byway_rdma::sim::Progress;

use super::*;

pub(super) fn cases() -> Vec<(&'static str, fn())> {
    vec![
        ("speed: messages on virtual time", || speed(FabricOptions::default())),
        ("speed: messages at once", || {
            speed(FabricOptions {
                delays: Delays::NONE,
                progress: Progress::AtOnce,
                ..FabricOptions::default()
            });
        }),
    ]
}

const MESSAGES: u64 = 40_000;
const BATCH: u64 = 8;

/// Eight sends of 64 bytes at a time, one signal, and every receive posted again.
fn speed(options: FabricOptions) {
    let sim = Sim::new(options);
    let (mut pair, fabric) = pair(&sim);
    let queue = RecvQueue::Own(pair.b.qp);
    pair.b.post_receives(queue, 32);
    let begun = Instant::now();
    let (mut done, mut batch) = (Vec::new(), Vec::new());
    let mut receives = Vec::new();
    let mut arrived = 0;
    for _ in 0..MESSAGES / BATCH {
        for index in 0..BATCH {
            batch.push(Request {
                signaled: index + 1 == BATCH,
                ..Request::signaled(
                    WorkId(index),
                    Operation::Send { immediate: None },
                    Payload::Inline(&[7; 64]),
                )
            });
        }
        pair.a.nic.post(pair.a.qp, &mut batch).expect("room");
        while pair.a.nic.poll(&mut done, 16).expect("a poll") == 0 {
            fabric.step();
        }
        done.clear();
        pair.b.nic.poll(&mut done, 16).expect("a poll");
        for completion in done.drain(..) {
            arrived += 1;
            let work = completion.work;
            let buffer = completion.payload.into_buffers().remove(0);
            receives.push(Receive { work, buffer });
        }
        pair.b.nic.post_recv(queue, &mut receives).expect("room");
    }
    assert_eq!(arrived, MESSAGES);
    let seconds = begun.elapsed().as_secs_f64();
    let rate = |count: u64| (count as f64 / seconds / 1000.0).round();
    println!("  {} thousand messages and {} thousand steps a second", rate(MESSAGES), rate(fabric.steps()));
}
