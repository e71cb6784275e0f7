//! Requests arrive and complete in the order they were posted, whatever they are made of.

use byway_rdma::nic::{Kind, Nic, Operation, Payload, Piece, Request};

use super::*;

pub(crate) fn cases<F: Fixture>() -> Vec<Case<F>> {
    vec![
        ("order: sends of every shape arrive in order", sends_of_every_shape),
        ("order: a linked list with one signal completes whole", linked_list_with_one_signal),
        ("order: a long unsignalled run completes", long_unsignalled_run),
        ("order: immediates keep their bits", immediates),
        ("order: a send shows the writes before it", writes_before_a_send),
        ("order: a large write is gathered and arrives whole", large_gathered_write),
        ("order: both directions at once", both_directions),
    ]
}

fn sends_of_every_shape<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    let receives = pair.b.post_receives(queue, 48);
    let mut sent = Vec::new();
    for index in 0..48u64 {
        let bytes = pattern(index, [0, 1, 17, 100, 1000, SIZE][index as usize % 6]);
        let inline_max = pair.a.nic.inline_max(pair.a.qp).expect("a queue pair") as usize;
        let work = match index % 3 {
            0 if bytes.len() <= inline_max => pair.a.send(Payload::Inline(&bytes)),
            1 => {
                let (head, tail) = bytes.split_at(bytes.len() / 2);
                let pieces = [head, tail].map(|part| {
                    let mut buffer = pair.a.buffer(SIZE);
                    buffer.fill_from(part);
                    buffer
                });
                let [head, tail] = pieces;
                let tail = Piece::Shared(tail.freeze());
                pair.a.send(Payload::Gather(vec![Piece::Owned(head), tail]))
            }
            _ => {
                let payload = pair.a.filled(&bytes);
                pair.a.send(payload)
            }
        };
        sent.push((work, bytes));
    }
    let completed = pair.a.take(fixture, Kind::Send, 48);
    let arrived = pair.b.take(fixture, Kind::Receive, 48);
    for (index, (completion, (work, bytes))) in arrived.into_iter().zip(&sent).enumerate() {
        assert_eq!(completion.work, receives[index], "receives are used in order");
        assert_eq!(success(&completion).len as usize, bytes.len());
        assert_eq!(buffer_of(completion).filled(), bytes, "message {index}");
        assert_eq!(completed[index].work, *work, "sends complete in order");
        success(&completed[index]);
    }
    pair.a.assert_quiet();
    pair.b.assert_quiet();
}

fn linked_list_with_one_signal<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 16);
    let mut works = Vec::new();
    let mut batch = Vec::new();
    for index in 0..16u64 {
        let work = pair.a.work();
        let payload = pair.a.filled(&pattern(index, 64));
        batch.push(if index == 15 { signaled(work, payload) } else { unsignaled(work, payload) });
        works.push(work);
    }
    pair.a.nic.post(pair.a.qp, &mut batch).expect("room for 16");
    assert!(batch.is_empty());
    let completed = pair.a.take(fixture, Kind::Send, 16);
    for (completion, work) in completed.into_iter().zip(works) {
        assert_eq!(completion.work, work);
        success(&completion);
        buffer_of(completion);
    }
    for (index, completion) in pair.b.take(fixture, Kind::Receive, 16).into_iter().enumerate() {
        assert_eq!(buffer_of(completion).filled(), pattern(index as u64, 64));
    }
    pair.a.assert_quiet();
}

/// Nobody signals, and still the queue never gets stuck.
fn long_unsignalled_run<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let (mut posted, mut finished, mut received) = (0u64, 0, 0);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 64);
    let end = Instant::now() + LIMIT;
    while received < 500 {
        // Never more messages than receives.
        if posted < 500 && posted < received + 64 {
            let work = pair.a.work();
            let bytes = posted.to_le_bytes();
            let mut batch = vec![unsignaled(work, Payload::Inline(&bytes))];
            posted += u64::from(pair.a.nic.post(pair.a.qp, &mut batch).is_ok());
        }
        for completion in pair.b.drain() {
            assert_eq!(success(&completion).len, 8);
            let work = completion.work;
            let buffer = buffer_of(completion);
            assert_eq!(buffer.filled(), received.to_le_bytes());
            received += 1;
            let mut batch = vec![Receive { work, buffer }];
            pair.b.nic.post_recv(queue, &mut batch).expect("the slot is free");
        }
        finished += pair.a.drain().iter().map(success).count();
        assert!(Instant::now() < end, "stuck after {received} of 500 messages");
        fixture.pause();
    }
    assert!(posted - finished as u64 <= 64, "{finished} of {posted} requests completed");
}

fn immediates<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    let values = [None, Some(0), Some(1), Some(0xdead_beef), Some(u32::MAX)];
    pair.b.post_receives(queue, values.len());
    for value in values {
        let work = pair.a.work();
        pair.a.nic.post_send(pair.a.qp, work, Payload::Empty, value).expect("room");
    }
    let arrived = pair.b.take(fixture, Kind::Receive, values.len());
    let seen: Vec<_> = arrived.iter().map(|completion| success(completion).immediate).collect();
    assert_eq!(seen, values);
}

fn writes_before_a_send<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    let landing = pair.b.buffer(8 * SIZE);
    let (window, slice) = pair.b.grant(fixture, landing, RemoteAccess::Write);
    let bytes = pattern(1, 8 * SIZE);
    let mut batch = Vec::new();
    for (index, chunk) in bytes.chunks(SIZE).enumerate() {
        let to =
            RemoteSlice { address: slice.address + (index * SIZE) as u64, len: SIZE as u64, key: slice.key };
        let operation = Operation::Write { to, immediate: None };
        batch.push(Request::unsignaled(pair.a.work(), operation, pair.a.filled(chunk)));
    }
    batch.push(signaled(pair.a.work(), Payload::Inline(b"done")));
    pair.a.nic.post(pair.a.qp, &mut batch).expect("room");
    success(&pair.b.take(fixture, Kind::Receive, 1)[0]);
    let (qp, work) = (pair.b.qp, pair.b.work());
    pair.b.nic.invalidate(qp, window, work).expect("room");
    let ended = pair.b.take(fixture, Kind::Invalidate, 1).remove(0);
    success(&ended);
    let mut landed = buffer_of(ended);
    landed.set_filled(bytes.len());
    assert!(landed.filled() == bytes, "the writes are in place");
    assert_eq!(pair.a.take(fixture, Kind::Write, 8).len(), 8);
}

fn large_gathered_write<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    let bytes = pattern(2, 1 << 20);
    let landing = pair.b.buffer(bytes.len());
    let (window, slice) = pair.b.grant(fixture, landing, RemoteAccess::Write);
    let pieces = bytes.chunks(400_000).map(|part| {
        let mut buffer = pair.a.buffer(part.len());
        buffer.fill_from(part);
        Piece::Owned(buffer)
    });
    let payload = Payload::Gather(pieces.collect());
    pair.a.write(payload, slice, Some(7));
    let told = pair.b.take(fixture, Kind::ReceiveWrite, 1).remove(0);
    assert_eq!(success(&told).len as usize, bytes.len());
    assert_eq!(success(&told).immediate, Some(7));
    let mut landed = pair.b.nic.free_window(window).expect("a window").expect("its buffer");
    landed.set_filled(bytes.len());
    assert!(landed.filled() == bytes, "every byte is in place");
    let done = pair.a.take(fixture, Kind::Write, 1).remove(0);
    assert_eq!(done.payload.into_buffers().len(), 3);
}

fn both_directions<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    for side in [&mut pair.a, &mut pair.b] {
        let queue = side.own();
        side.post_receives(queue, 32);
    }
    for index in 0..32u64 {
        pair.a.send(Payload::Inline(&pattern(index, 32)));
        pair.b.send(Payload::Inline(&pattern(index + 100, 32)));
    }
    for (side, first) in [(&mut pair.b, 0), (&mut pair.a, 100)] {
        for (index, completion) in side.take(fixture, Kind::Receive, 32).into_iter().enumerate() {
            assert_eq!(buffer_of(completion).filled(), pattern(first + index as u64, 32));
        }
        side.take(fixture, Kind::Send, 32);
        side.assert_quiet();
    }
}
