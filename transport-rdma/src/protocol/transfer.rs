//! The states of a body on its way, at both ends, and of the memory it lands in.
//!
//! Owns two tables, [`Outgoing`] and [`Landing`]; `outgoing` and `incoming` have what is in these states. An
//! announced body gets exactly one answer, a grant or a refusal. A landing that the sender knows of, granted
//! or offered, is given back by the sender exactly once: written or released. Neither side takes back what it
//! said: a write through a window that is gone fails the queue pair, so the memory of a call that is over
//! comes back when its sender has written or released it.
//!
//! ```text
//! sender
//!                  Grant            Taken          Staged         Sent: the write with immediate
//!   ──▶ Announced ───────▶ Granted ───────▶ Copying ───────▶ Staged ───────▶ (delivered)
//!   frame  │   │            ▲   │              │              │
//! announced│   │Refusal     │   │Cancel        │Cancel        │Cancel
//!          │   └──▶(refused)│   └──────────────┴──────────────┴──▶ Releasing ──ReleaseSent──▶ (over)
//!    Cancel│                │FrameSent                              ▲   ▲
//!          ▼                │                                       │   │
//!      Abandoned ───────────┼────────────Grant──────────────────────┘   │
//!          └──Refusal──▶(over)                                          │
//!   frame names an offer ──▶ Queued ───────────Cancel───────────────────┘
//!
//! receiver
//!   offer sent ──▶ Offered ──Placed──▶ Expected ──Written──▶ (landed: the session gets it)
//!                   │Over               ▲  │Over
//!                   │     grant sent ───┘  │
//!                   ▼                      ▼
//!               OfferedOrphan ─Placed─▶ ExpectedOrphan ──Written──▶ (free)
//!   and in every state: Release ──▶ (free)
//! ```
//! Never: knows a number, a length or memory.

/// Where a body is that this side sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// Its frame went into the queue; the peer has not answered.
    Announced,
    /// So, and its call is over: the answer will be the end.
    Abandoned,
    /// Its frame, which names an offer, waits in the queue. Nothing may be written before it left.
    Queued,
    /// It may be written, and nobody has begun.
    Granted,
    /// The driver copies it and posts writes.
    Copying,
    /// All but the last write were posted.
    Staged,
    /// It will not be written, and the release of its landing waits to be sent. Until then the peer takes its
    /// number for taken.
    Releasing,
}

/// What happens to such a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutgoingEvent {
    /// The peer granted memory.
    Grant,
    /// The peer refused.
    Refusal,
    /// The message with its frame was posted.
    FrameSent,
    /// The driver took it.
    Taken,
    /// The driver posted all but the last write.
    Staged,
    /// The last write, with the immediate, was posted.
    Sent,
    /// The message with the release was posted.
    ReleaseSent,
    /// Its call is over.
    Cancel,
}

/// What the sender does then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutgoingEffect {
    Nothing,
    /// Offer the body to the driver for copying.
    Job,
    /// Send the last write when there is a credit.
    Final,
    /// The body is delivered.
    Delivered,
    /// The body was refused.
    Refused,
    /// The body is not needed, its number still is.
    Drop,
    /// Release the landing; the body was dropped before.
    Release,
    /// The body is not needed; release the landing.
    DropAndRelease,
}

impl Outgoing {
    /// The state after `event` (`None`: it is over) and what to do; `None` when the event is not allowed here.
    pub(super) fn after(self, event: OutgoingEvent) -> Option<(Option<Self>, OutgoingEffect)> {
        use OutgoingEffect as Effect;
        use OutgoingEvent as Event;
        Some(match (self, event) {
            (Self::Announced, Event::Grant) | (Self::Queued, Event::FrameSent) => {
                (Some(Self::Granted), Effect::Job)
            }
            (Self::Announced, Event::Refusal) => (None, Effect::Refused),
            (Self::Announced, Event::Cancel) => (Some(Self::Abandoned), Effect::Drop),
            (Self::Abandoned, Event::Grant) => (Some(Self::Releasing), Effect::Release),
            (Self::Abandoned, Event::Refusal) => (None, Effect::Nothing),
            (Self::Abandoned, Event::Cancel) => (Some(Self::Abandoned), Effect::Nothing),
            (Self::Granted, Event::Taken) => (Some(Self::Copying), Effect::Nothing),
            (Self::Copying, Event::Staged) => (Some(Self::Staged), Effect::Final),
            (Self::Staged, Event::Sent) => (None, Effect::Delivered),
            (Self::Queued | Self::Granted | Self::Copying | Self::Staged, Event::Cancel) => {
                (Some(Self::Releasing), Effect::DropAndRelease)
            }
            (Self::Releasing, Event::ReleaseSent) => (None, Effect::Nothing),
            (Self::Releasing, Event::Cancel) => (Some(Self::Releasing), Effect::Nothing),
            _ => return None,
        })
    }
}

/// Where memory is that this side granted or offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Landing {
    /// Offered for a reply.
    Offered,
    /// So, and its call is over.
    OfferedOrphan,
    /// A body will be written into it.
    Expected,
    /// So, and its call is over.
    ExpectedOrphan,
}

/// What happens to such memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LandingEvent {
    /// A frame says that its body will be written there.
    Placed,
    /// The body is complete.
    Written,
    /// The peer will not write, or no further.
    Release,
    /// The call is over.
    Over,
}

/// What the receiver does then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LandingEffect {
    Nothing,
    /// Hand the body to the session.
    Land,
    /// Take the memory back.
    Free,
}

impl Landing {
    /// The state after `event` (`None`: it is over) and what to do; `None` when the event is not allowed here.
    pub(super) fn after(self, event: LandingEvent) -> Option<(Option<Self>, LandingEffect)> {
        use LandingEffect as Effect;
        use LandingEvent as Event;
        Some(match (self, event) {
            (Self::Offered, Event::Placed) => (Some(Self::Expected), Effect::Nothing),
            (Self::OfferedOrphan, Event::Placed) => (Some(Self::ExpectedOrphan), Effect::Nothing),
            (Self::Expected, Event::Written) => (None, Effect::Land),
            (Self::ExpectedOrphan, Event::Written) | (_, Event::Release) => (None, Effect::Free),
            (Self::Offered | Self::OfferedOrphan, Event::Over) => {
                (Some(Self::OfferedOrphan), Effect::Nothing)
            }
            (Self::Expected | Self::ExpectedOrphan, Event::Over) => {
                (Some(Self::ExpectedOrphan), Effect::Nothing)
            }
            (Self::Expected | Self::ExpectedOrphan, Event::Placed)
            | (Self::Offered | Self::OfferedOrphan, Event::Written) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<S: std::fmt::Debug, E: std::fmt::Debug>(
        state: impl std::fmt::Debug,
        event: impl std::fmt::Debug,
        after: Option<(Option<S>, E)>,
    ) -> String {
        match after {
            None => format!("{state:?} {event:?} refused\n"),
            Some((None, effect)) => format!("{state:?} {event:?} over {effect:?}\n"),
            Some((Some(next), effect)) => format!("{state:?} {event:?} {next:?} {effect:?}\n"),
        }
    }

    /// Every state against every event: a changed transition changes this table.
    #[test]
    fn the_whole_table_of_the_sender() {
        use Outgoing::*;
        use OutgoingEvent as Event;
        let events = [
            Event::Grant,
            Event::Refusal,
            Event::FrameSent,
            Event::Taken,
            Event::Staged,
            Event::Sent,
            Event::ReleaseSent,
            Event::Cancel,
        ];
        let mut table = String::new();
        for state in [Announced, Abandoned, Queued, Granted, Copying, Staged, Releasing] {
            for event in events {
                table += &row(state, event, state.after(event));
            }
        }
        assert_eq!(
            table,
            "Announced Grant Granted Job\nAnnounced Refusal over Refused\nAnnounced FrameSent refused\nAnnounced Taken refused\n\
             Announced Staged refused\nAnnounced Sent refused\nAnnounced ReleaseSent refused\nAnnounced Cancel Abandoned Drop\n\
             Abandoned Grant Releasing Release\nAbandoned Refusal over Nothing\nAbandoned FrameSent refused\nAbandoned Taken refused\n\
             Abandoned Staged refused\nAbandoned Sent refused\nAbandoned ReleaseSent refused\nAbandoned Cancel Abandoned Nothing\n\
             Queued Grant refused\nQueued Refusal refused\nQueued FrameSent Granted Job\nQueued Taken refused\n\
             Queued Staged refused\nQueued Sent refused\nQueued ReleaseSent refused\nQueued Cancel Releasing DropAndRelease\n\
             Granted Grant refused\nGranted Refusal refused\nGranted FrameSent refused\nGranted Taken Copying Nothing\n\
             Granted Staged refused\nGranted Sent refused\nGranted ReleaseSent refused\nGranted Cancel Releasing DropAndRelease\n\
             Copying Grant refused\nCopying Refusal refused\nCopying FrameSent refused\nCopying Taken refused\n\
             Copying Staged Staged Final\nCopying Sent refused\nCopying ReleaseSent refused\nCopying Cancel Releasing DropAndRelease\n\
             Staged Grant refused\nStaged Refusal refused\nStaged FrameSent refused\nStaged Taken refused\n\
             Staged Staged refused\nStaged Sent over Delivered\nStaged ReleaseSent refused\nStaged Cancel Releasing DropAndRelease\n\
             Releasing Grant refused\nReleasing Refusal refused\nReleasing FrameSent refused\nReleasing Taken refused\n\
             Releasing Staged refused\nReleasing Sent refused\nReleasing ReleaseSent over Nothing\nReleasing Cancel Releasing Nothing\n"
        );
    }

    #[test]
    fn the_whole_table_of_the_receiver() {
        use Landing::*;
        use LandingEvent as Event;
        let mut table = String::new();
        for state in [Offered, OfferedOrphan, Expected, ExpectedOrphan] {
            for event in [Event::Placed, Event::Written, Event::Release, Event::Over] {
                table += &row(state, event, state.after(event));
            }
        }
        assert_eq!(
            table,
            "Offered Placed Expected Nothing\nOffered Written refused\nOffered Release over Free\n\
             Offered Over OfferedOrphan Nothing\n\
             OfferedOrphan Placed ExpectedOrphan Nothing\nOfferedOrphan Written refused\nOfferedOrphan Release over Free\n\
             OfferedOrphan Over OfferedOrphan Nothing\n\
             Expected Placed refused\nExpected Written over Land\nExpected Release over Free\n\
             Expected Over ExpectedOrphan Nothing\n\
             ExpectedOrphan Placed refused\nExpectedOrphan Written over Free\nExpectedOrphan Release over Free\n\
             ExpectedOrphan Over ExpectedOrphan Nothing\n"
        );
    }
}
