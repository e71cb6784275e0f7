//! Credits alone, between two sides that send, return and announce in any order.

use std::collections::VecDeque;

use super::super::credit::{Credits, MIN_WINDOW, ReceiveCredits, SendCredits, Total};

/// A side that has things to send, some of which carry no credits.
struct Side {
    send: SendCredits,
    receive: ReceiveCredits,
    to_send: usize,
    to_return: u32,
    incoming: VecDeque<Travelling>,
}

#[derive(Clone, Copy)]
enum Travelling {
    Message(Total),
    Immediate,
    Bare(Total),
}

impl Side {
    fn new(peer: u32, own: u32, to_send: usize) -> Self {
        let send = SendCredits::new(Credits(peer));
        let receive = ReceiveCredits::any(Credits(own));
        Self { send, receive, to_send, to_return: 0, incoming: VecDeque::new() }
    }

    fn step(&mut self, random: &mut fastrand::Rng) -> Option<Travelling> {
        if self.to_send > 0 && self.send.may_send() {
            self.to_send -= 1;
            self.send.use_one();
            if random.u8(..) < 100 {
                return Some(Travelling::Immediate);
            }
            return Some(Travelling::Message(self.receive.announce()));
        }
        if self.receive.wants_bare() && self.send.may_send_bare() {
            self.send.use_one();
            return Some(Travelling::Bare(self.receive.announce()));
        }
        None
    }

    fn arrive(&mut self) -> bool {
        let Some(travelling) = self.incoming.pop_front() else { return false };
        self.receive.handle_arrival().expect("an honest peer has a credit");
        self.to_return += 1;
        if let Travelling::Message(total) | Travelling::Bare(total) = travelling {
            self.send.handle_total(total).expect("an honest total");
        }
        true
    }
}

/// Runs until nothing moves; `false` when something is left to send, that is, when both wait.
fn finishes(windows: [u32; 2], seed: u64) -> bool {
    let mut random = fastrand::Rng::with_seed(seed);
    let [a, b] = windows;
    let mut sides = [Side::new(b, a, random.usize(0..60)), Side::new(a, b, random.usize(0..60))];
    let (mut idle, mut bares, mut others) = (0, 0, 0);
    while idle < 80 {
        let index = random.usize(0..2);
        let side = &mut sides[index];
        let moved = match random.u8(0..4) {
            0 | 1 => side.arrive(),
            2 if side.to_return > 0 => {
                let count = random.u32(1..=side.to_return);
                side.to_return -= count;
                side.receive.handle_returned(Credits(count));
                true
            }
            _ => match side.step(&mut random) {
                Some(travelling) => {
                    let bare = matches!(travelling, Travelling::Bare(_));
                    *(if bare { &mut bares } else { &mut others }) += 1;
                    sides[1 - index].incoming.push_back(travelling);
                    true
                }
                None => false,
            },
        };
        idle = if moved { 0 } else { idle + 1 };
        if idle == 40 {
            // Late joiners: quiet for long, then with something to say after all.
            let late = usize::from(random.bool() && others < 150);
            sides[random.usize(0..2)].to_send += late;
        }
        assert!(bares <= others, "bare messages die out (seed {seed}): {bares} for {others}");
        for (index, window) in windows.into_iter().enumerate() {
            let (own, other) = (&sides[index], &sides[1 - index]);
            let under_way = own.incoming.len() as u32;
            let used = own.receive.outstanding().0 + own.receive.in_use().0 + own.receive.owed().0;
            assert_eq!(used, window, "every entry is in one place (seed {seed})");
            assert!(other.send.available().0 + under_way <= own.receive.outstanding().0);
            assert_eq!(own.receive.in_use().0, own.to_return);
        }
    }
    sides.iter().all(|side| side.to_send == 0)
}

#[test]
fn two_sides_never_wait_for_each_other_from_a_window_of_three() {
    for window in MIN_WINDOW..=32 {
        for seed in 0..400 {
            let other = fastrand::Rng::with_seed(seed).u32(MIN_WINDOW..=32);
            for windows in [[window, window], [window, other]] {
                assert!(finishes(windows, seed), "windows {windows:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn with_a_window_of_two_they_do() {
    assert!((0..400).any(|seed| !finishes([2, 2], seed)));
}
