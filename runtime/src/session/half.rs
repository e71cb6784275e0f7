//! One direction of one call.
//!
//! Owns the order in which initial metadata, messages and the end may come. Each call has two halves, and each side
//! checks both with the same table: what it sends and what it receives. A client's half begins with its `Open`.
//!
//! ```text
//!              HEAD             MESSAGE (any number)
//!   AwaitHead ──────▶ Open ────┐◀──┐
//!       │              │       └───┘
//!       │ END without  │ END
//!       │ HEAD         ▼
//!       └──────────▶ Ended
//! ```
//! A server may end without initial metadata, but then without a message too.

use super::frame::Flags;

/// How far one direction of a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    AwaitHead,
    Open,
    Ended,
}

impl Half {
    /// The state after a frame with `flags`; `None` when the frame is not allowed here.
    #[inline]
    pub(crate) fn after(self, flags: Flags) -> Option<Self> {
        let head = flags.contains(Flags::HEAD);
        let message = flags.contains(Flags::MESSAGE);
        let end = flags.contains(Flags::END);
        match (self, head, message, end) {
            (_, false, false, false) => None,
            (Self::AwaitHead, true, _, false) => Some(Self::Open),
            (Self::AwaitHead, true, _, true) => Some(Self::Ended),
            (Self::AwaitHead, false, false, true) => Some(Self::Ended),
            (Self::AwaitHead, false, _, _) => None,
            (Self::Open, false, _, false) => Some(Self::Open),
            (Self::Open, false, _, true) => Some(Self::Ended),
            (Self::Open, true, _, _) => None,
            (Self::Ended, ..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state against every combination of flags: a changed transition changes this table.
    #[test]
    fn the_whole_table() {
        let mut table = String::new();
        for state in [Half::AwaitHead, Half::Open, Half::Ended] {
            for bits in 0..8 {
                let flags = Flags::NONE
                    .with_if(Flags::HEAD, bits & 1 != 0)
                    .with_if(Flags::MESSAGE, bits & 2 != 0)
                    .with_if(Flags::END, bits & 4 != 0);
                let names = [(1, "H"), (2, "M"), (4, "E")]
                    .map(|(bit, name)| if bits & bit != 0 { name } else { "-" })
                    .concat();
                let next = state.after(flags).map_or("refused".into(), |next| format!("{next:?}"));
                table += &format!("{state:?} {names} {next}\n");
            }
        }
        assert_eq!(
            table,
            "AwaitHead --- refused\nAwaitHead H-- Open\nAwaitHead -M- refused\nAwaitHead HM- Open\n\
             AwaitHead --E Ended\nAwaitHead H-E Ended\nAwaitHead -ME refused\nAwaitHead HME Ended\n\
             Open --- refused\nOpen H-- refused\nOpen -M- Open\nOpen HM- refused\n\
             Open --E Ended\nOpen H-E refused\nOpen -ME Ended\nOpen HME refused\n\
             Ended --- refused\nEnded H-- refused\nEnded -M- refused\nEnded HM- refused\n\
             Ended --E refused\nEnded H-E refused\nEnded -ME refused\nEnded HME refused\n"
        );
    }
}
