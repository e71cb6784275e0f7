//! A peer reaches exactly what was granted to it, and only as long as it is granted.

use byway_rdma::nic::{Kind, Nic, NicError, Payload};

use super::*;

pub(crate) fn cases<F: Fixture>() -> Vec<Case<F>> {
    vec![
        ("access: an unknown key is refused", unknown_key),
        ("access: a write beyond the registration is refused", beyond_registration),
        ("access: a write beyond the window", beyond_window),
        ("access: a window for reading refuses a write", read_only_window),
        ("access: a window of another queue pair is refused", foreign_window),
        ("access: an invalidated window is refused", stale_window),
        ("access: a rebound window refuses its old key", rebound_window),
        ("access: a freed window is refused and gives its buffer back", freed_window),
        ("access: a bound window is not bound again", bound_twice),
        ("access: an unbound window is not invalidated", invalidated_twice),
        ("access: a registration's own key grants nothing", registration_key),
        ("access: a write longer than its target is refused at once", longer_than_target),
        ("access: windows come and go many times", many_rounds),
    ]
}

/// What A's write to `to` ends with.
fn write_outcome<F: Fixture>(fixture: &F, pair: &mut Pair<F::Nic>, to: RemoteSlice) -> Result<(), Status> {
    let payload = pair.a.filled(&[0xEE; 16]);
    pair.a.write(payload, RemoteSlice { len: 16, ..to }, None);
    let completion = pair.a.take(fixture, Kind::Write, 1).remove(0);
    completion.outcome.map(drop).map_err(|failure| failure.status)
}

fn assert_refused<F: Fixture>(fixture: &F, pair: &mut Pair<F::Nic>, to: RemoteSlice) {
    assert_eq!(write_outcome(fixture, pair, to), Err(Status::RemoteAccess));
}

fn grant<F: Fixture>(fixture: &F, pair: &mut Pair<F::Nic>) -> (WindowId, RemoteSlice) {
    let buffer = pair.b.buffer(SIZE);
    pair.b.grant(fixture, buffer, RemoteAccess::Write)
}

fn unknown_key<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let (_window, slice) = grant(fixture, &mut pair);
    assert_refused(fixture, &mut pair, RemoteSlice { key: slice.key ^ 0x5500, ..slice });
}

fn beyond_registration<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let (_window, slice) = grant(fixture, &mut pair);
    let address = slice.address + slice.len - 15;
    assert_refused(fixture, &mut pair, RemoteSlice { address, ..slice });
}

fn beyond_window<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let mut buffers = pair.b.buffers(2, SIZE);
    let granted = buffers.remove(0);
    assert!(!granted.is_whole_registration());
    let (_window, slice) = pair.b.grant(fixture, granted, RemoteAccess::Write);
    let outcome =
        write_outcome(fixture, &mut pair, RemoteSlice { address: slice.address + slice.len, ..slice });
    if fixture.deviates(Deviation::WriteBeyondWindow) {
        assert_eq!(outcome, Ok(()), "the deviation is gone: remove it from the list");
    } else {
        assert_eq!(outcome, Err(Status::RemoteAccess));
    }
}

fn read_only_window<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let buffer = pair.b.buffer(SIZE);
    let (_window, slice) = pair.b.grant(fixture, buffer, RemoteAccess::Read);
    assert_refused(fixture, &mut pair, slice);
}

fn foreign_window<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let second_a = pair.a.nic.create_queue_pair(&spec()).expect("a queue pair");
    let second_b = pair.b.nic.create_queue_pair(&spec()).expect("a queue pair");
    connect(&mut pair.a.nic, second_a, &mut pair.b.nic, second_b);
    let (_window, slice) = grant(fixture, &mut pair);
    assert_eq!(write_outcome(fixture, &mut pair, slice), Ok(()), "through its own queue pair");
    pair.a.qp = second_a;
    assert_refused(fixture, &mut pair, slice);
}

fn stale_window<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let (window, slice) = grant(fixture, &mut pair);
    assert_eq!(write_outcome(fixture, &mut pair, slice), Ok(()));
    let ended = invalidate(fixture, &mut pair.b, window);
    let mut landed = buffer_of(ended);
    landed.set_filled(16);
    assert_eq!(landed.filled(), [0xEE; 16], "what was written while it was granted");
    assert_refused(fixture, &mut pair, slice);
    assert_eq!(landed.filled(), [0xEE; 16]);
}

fn invalidate<F: Fixture>(fixture: &F, side: &mut Side<F::Nic>, window: WindowId) -> Completion {
    let (qp, work) = (side.qp, side.work());
    side.nic.invalidate(qp, window, work).expect("room");
    let ended = side.take(fixture, Kind::Invalidate, 1).remove(0);
    assert_eq!(ended.work, work);
    success(&ended);
    ended
}

fn rebound_window<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let (window, old) = grant(fixture, &mut pair);
    let buffer = buffer_of(invalidate(fixture, &mut pair.b, window));
    let (qp, work) = (pair.b.qp, pair.b.work());
    let new = pair.b.nic.bind(qp, window, work, buffer, RemoteAccess::Write).expect("room");
    success(&pair.b.take(fixture, Kind::Bind, 1)[0]);
    assert_ne!(old.key, new.key);
    assert_eq!(write_outcome(fixture, &mut pair, new), Ok(()));
    assert_refused(fixture, &mut pair, old);
}

fn freed_window<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let (window, slice) = grant(fixture, &mut pair);
    assert_eq!(write_outcome(fixture, &mut pair, slice), Ok(()));
    let mut landed = pair.b.nic.free_window(window).expect("a window").expect("its buffer");
    landed.set_filled(16);
    assert_eq!(landed.filled(), [0xEE; 16]);
    assert_refused(fixture, &mut pair, slice);
    assert!(matches!(pair.b.nic.free_window(window), Err(NicError::UnknownWindow(_))));
}

fn bound_twice<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let (window, _) = grant(fixture, &mut pair);
    let buffer = pair.b.buffer(SIZE);
    let (qp, work) = (pair.b.qp, pair.b.work());
    let refused = pair.b.nic.bind(qp, window, work, buffer, RemoteAccess::Write);
    let refused = refused.expect_err("it is bound");
    assert!(matches!(refused.error, NicError::State(_)));
    assert_eq!(refused.returned.capacity(), SIZE);
    pair.b.assert_quiet();
}

fn invalidated_twice<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let (window, _) = grant(fixture, &mut pair);
    invalidate(fixture, &mut pair.b, window);
    let (qp, work) = (pair.b.qp, pair.b.work());
    let refused = pair.b.nic.invalidate(qp, window, work);
    assert!(matches!(refused, Err(NicError::State(_))));
    pair.b.assert_quiet();
}

fn registration_key<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let buffer = pair.b.buffer(SIZE);
    let slice =
        RemoteSlice { address: buffer.address(), len: SIZE as u64, key: buffer.registration().remote_key() };
    assert_refused(fixture, &mut pair, slice);
}

fn longer_than_target<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let (_window, slice) = grant(fixture, &mut pair);
    let payload = pair.a.filled(&[1; 17]);
    let (qp, work) = (pair.a.qp, pair.a.work());
    let to = RemoteSlice { len: 16, ..slice };
    let refused = pair.a.nic.post_write(qp, work, payload, to, None).expect_err("too long");
    assert!(matches!(refused.error, NicError::Invalid(_)));
    assert_eq!(refused.returned.into_buffers()[0].filled(), [1; 17]);
    pair.a.assert_quiet();
    let inline_max = pair.a.nic.inline_max(qp).expect("a queue pair") as usize;
    let work = pair.a.work();
    let bytes = vec![0; inline_max + 1];
    let refused = pair.a.nic.post_send(qp, work, Payload::Inline(&bytes), None).expect_err("too long");
    assert!(matches!(refused.error, NicError::Invalid(_)));
    pair.a.assert_quiet();
}

/// More rounds than a key has variants, over one window and one buffer.
fn many_rounds<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let window = pair.b.nic.allocate_window().expect("a window");
    let mut buffer = pair.b.buffer(SIZE);
    for round in 0..300u32 {
        let (qp, work) = (pair.b.qp, pair.b.work());
        let slice = pair.b.nic.bind(qp, window, work, buffer, RemoteAccess::Write).expect("room");
        success(&pair.b.take(fixture, Kind::Bind, 1)[0]);
        pair.a.write(Payload::Inline(&round.to_le_bytes()), slice, None);
        success(&pair.a.take(fixture, Kind::Write, 1)[0]);
        buffer = buffer_of(invalidate(fixture, &mut pair.b, window));
        buffer.set_filled(4);
        assert_eq!(buffer.filled(), round.to_le_bytes());
    }
}
