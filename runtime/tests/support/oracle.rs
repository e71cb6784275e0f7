//! What the oracle says of frames that arrive, of failure, and after every step.

use byway_runtime::link::Link;
use byway_runtime::session::{Failure, Flags, Kind, Role};

use super::Sent;
use super::model::{Expected, Seat, other};
use super::pair::Pair;

impl Pair {
    /// Notes a frame that `role` heard; whether the driver was to dispatch a call.
    pub(super) fn heard(&mut self, role: Role, sent: &Sent, later: Option<u64>) -> bool {
        let number = sent.head.first_chunk::<4>().map_or(0, |bytes| i64::from(u32::from_le_bytes(*bytes)));
        let code = sent.head.first().copied();
        let kind = sent.header.kind;
        if matches!(kind, Kind::Ping | Kind::Pong | Kind::Close) {
            return false;
        }
        if kind == Kind::Drain {
            self.client_drains = true;
            return false;
        }
        let call = self.ids[&sent.header.call];
        match kind {
            Kind::Window => {
                let seat = self.calls[call].seat(role);
                seat.window += if seat.open { number } else { 0 };
                false
            }
            Kind::Reset => {
                let seat = self.calls[call].seat(role);
                match role {
                    Role::Server => seat.close(),
                    Role::Client if !seat.open => {}
                    Role::Client => {
                        assert_eq!(code, Some(1), "this server resets only what it refuses");
                        seat.end_alone("not sent Unavailable the server takes no new calls".into());
                    }
                }
                false
            }
            Kind::Open | Kind::Data => self.heard_part(role, call, sent, later),
            Kind::Ping | Kind::Pong | Kind::Drain | Kind::Close => false,
        }
    }

    fn heard_part(&mut self, role: Role, call: usize, sent: &Sent, later: Option<u64>) -> bool {
        let held = self.held(role);
        let budget = self.side(role).limits.receive_budget;
        let refuses = self.server_drains;
        let call = &mut self.calls[call];
        let part = call.seat(other(role)).on_the_way.pop_front().expect("nothing is heard that was not sent");
        assert_eq!(part.message.is_some(), sent.header.flags.contains(Flags::MESSAGE));
        let opens = sent.header.kind == Kind::Open;
        let seat = call.seat(role);
        if opens && refuses {
            self.saw("a refused call");
            return false;
        }
        if (!opens && !seat.open) || seat.deaf {
            self.saw("a part of a call that is over");
            return false;
        }
        if held + part.cost() > budget {
            let end = format!(
                "status ResourceExhausted the connection holds {budget} bytes of messages that nobody has read yet, its limit"
            );
            match role {
                Role::Client => seat.end_alone(end),
                Role::Server => {
                    seat.on_the_way.push_back(Expected::end(end));
                    seat.close();
                }
            }
            self.saw("a full budget");
            return false;
        }
        if opens {
            (seat.open, seat.holds) = (true, true);
        }
        if part.end.is_some() {
            seat.heard_end = true;
            if role == Role::Client {
                seat.sends = super::model::Sends::Nothing;
            }
        }
        seat.inbox.push_back(Expected { later, ..part });
        if later.is_some() {
            self.saw("a late body");
        }
        opens
    }

    /// The link is over and had delivered what came before `delivered`.
    pub(crate) fn fail(&mut self, delivered: u64) {
        let failure = Failure::new("it broke");
        self.client.session.handle_failure(&failure, delivered);
        self.server.session.handle_failure(&failure, self.server.link.position());
        self.failed = true;
        for side in [&mut self.client, &mut self.server] {
            side.link.frames.clear();
            side.landing.clear();
        }
        for call in &mut self.calls {
            call.client.on_the_way.clear();
            call.server.on_the_way.clear();
            call.server.close();
            let seat = &mut call.client;
            if !seat.open {
                continue;
            }
            let kind = if call.began >= delivered { "not sent" } else { "status" };
            seat.end_alone(format!("{kind} Unavailable the connection is over: it broke"));
            seat.heard_end = true;
            seat.sends = super::model::Sends::Nothing;
        }
    }

    fn held(&self, role: Role) -> u64 {
        let seats = self.calls.iter().map(|call| match role {
            Role::Client => &call.client,
            Role::Server => &call.server,
        });
        seats.map(Seat::held).sum()
    }

    /// Compares everything that can be seen from outside, and wakes whom the sessions woke.
    pub(crate) fn check(&mut self) {
        self.client.wake();
        self.server.wake();
        for role in [Role::Client, Role::Server] {
            let held = self.held(role);
            let seats = self.calls.iter_mut().map(|call| call.seat(role));
            let open = seats.filter(|seat| seat.open).count();
            let side = self.side(role);
            assert_eq!(side.session.held(), held, "{role:?} holds what nobody has read");
            assert!(held <= side.limits.receive_budget, "{role:?} keeps to its budget");
            assert_eq!(side.session.open_calls(), open, "{role:?}'s open calls");
            if self.failed {
                assert!(self.side(role).link.frames.is_empty(), "{role:?} says nothing after the end");
            }
        }
        let handlers = self.calls.iter().filter(|call| call.server.holds).count();
        assert_eq!(self.server.session.handlers(), handlers);
        assert_eq!(self.client.session.handlers(), 0);
        let grants = self.grants_on_the_way();
        let rooms = [self.client.link.has_room(), self.server.link.has_room()];
        let windows = [self.server.limits.window, self.client.limits.window];
        for (at, call) in self.calls.iter_mut().enumerate().filter(|(_, call)| !call.is_settled()) {
            let seats = [&call.client, &call.server];
            for direction in 0..2 {
                let (seat, peer) = (seats[direction], seats[1 - direction]);
                assert_nobody_sleeps(seat, rooms[direction]);
                let is_whole = seat.open && peer.open && !peer.heard_end && !peer.deaf && !self.failed;
                if is_whole {
                    let under_way: u64 = seat.on_the_way.iter().map(Expected::cost).sum();
                    let granted = grants.iter().filter(|grant| (grant.0, grant.1) == (direction, call.id));
                    let granted: u64 = granted.map(|grant| grant.2).sum();
                    let total = seat.window + (under_way + peer.held() + peer.unreturned + granted) as i64;
                    assert_eq!(total, i64::from(windows[direction]), "the window of call {at} is conserved");
                }
            }
        }
    }

    /// Window frames under way: to which side, for which call, of how much.
    fn grants_on_the_way(&self) -> Vec<(usize, byway_runtime::session::CallId, u64)> {
        let to = [(0, &self.server.link), (1, &self.client.link)];
        let frames = to.into_iter().flat_map(|(to, link)| link.frames.iter().map(move |sent| (to, sent)));
        let grants = frames.filter(|(_, sent)| sent.header.kind == Kind::Window);
        grants
            .map(|(to, sent)| {
                let bytes = sent.head[..].try_into().expect("four bytes");
                (to, sent.header.call, u64::from(u32::from_le_bytes(bytes)))
            })
            .collect()
    }
}

/// A task that sleeps has nothing to do: no wake-up was lost.
fn assert_nobody_sleeps(seat: &Seat, has_room: bool) {
    if seat.reader.sleeps() {
        assert!(seat.open && !seat.has_unread(), "a reader was not woken: {seat:?}");
    }
    if seat.writer.sleeps() {
        let (head, end) = seat.writes;
        let in_place = seat.open && seat.sends.after(head, true, end).is_some();
        assert!(in_place && (seat.window <= 0 || !has_room), "a writer was not woken: {seat:?}");
    }
    if seat.watcher.sleeps() {
        assert!(seat.open, "a watcher was not woken: {seat:?}");
    }
}
