//! Addresses of a port, and which of them to prefer.
//!
//! Owns [`Gid`] and its order of preference. Invariant: an entry without an address, or beyond what a queue pair can
//! name, is no [`Gid`].

use std::fmt;

use super::ffi::ibv_gid_entry;

/// How a port's address is carried on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: an Ethernet protocol of its own, not routable.
    RoceV1,
    /// RoCE version 2: over UDP.
    RoceV2,
    /// A kind that this version does not know.
    Unknown(u32),
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::RoceV1 => f.write_str("RoCE v1"),
            Self::RoceV2 => f.write_str("RoCE v2"),
            Self::Unknown(_) => f.write_str("unknown kind"),
        }
    }
}

impl GidKind {
    /// The kind that a line of `gid_attrs/types` names.
    pub fn from_sysfs(text: &str) -> Self {
        match text {
            "RoCE v2" => Self::RoceV2,
            // sysfs calls RoCE v1 by this name too; ibv_query_gid_table tells them apart.
            "IB/RoCE v1" => Self::RoceV1,
            _ => Self::Unknown(u32::MAX),
        }
    }
}

/// One address of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u8,
    /// How it is carried.
    pub kind: GidKind,
    /// The 16 bytes.
    pub raw: [u8; 16],
    /// Index of the network interface that it belongs to; zero when it belongs to none.
    pub interface: u32,
}

impl Gid {
    pub(super) fn from_entry(entry: &ibv_gid_entry) -> Option<Self> {
        let kind = match entry.gid_type {
            0 => GidKind::InfiniBand,
            1 => GidKind::RoceV1,
            2 => GidKind::RoceV2,
            other => GidKind::Unknown(other),
        };
        // A queue pair names its source address by 8 bits.
        let index = u8::try_from(entry.gid_index).ok()?;
        let interface = entry.ndev_ifindex;
        (entry.gid.raw != [0; 16]).then_some(Self { index, kind, raw: entry.gid.raw, interface })
    }

    pub(super) fn is_link_local(&self) -> bool {
        self.raw[0] == 0xfe && self.raw[1] & 0xc0 == 0x80
    }
}

/// The address to use: routable RoCE before the older one, global before link-local, and among equals the first.
pub fn best_gid(gids: &[Gid]) -> Option<Gid> {
    let rank = |gid: &Gid| {
        let kind = match gid.kind {
            GidKind::RoceV2 => 0,
            GidKind::InfiniBand => 1,
            GidKind::RoceV1 => 2,
            GidKind::Unknown(_) => 3,
        };
        (kind, gid.is_link_local())
    };
    gids.iter().copied().min_by_key(rank)
}

#[cfg(test)]
mod tests {
    use super::super::ffi::ibv_gid;
    use super::*;

    fn gid(index: u8, kind: GidKind, first: u8, second: u8) -> Gid {
        let mut raw = [1; 16];
        (raw[0], raw[1]) = (first, second);
        Gid { index, kind, raw, interface: 0 }
    }

    #[test]
    fn routable_and_global_addresses_are_preferred() {
        let table = [
            gid(0, GidKind::RoceV1, 0xfe, 0x80),
            gid(1, GidKind::RoceV2, 0xfe, 0x80),
            gid(4, GidKind::RoceV1, 0, 0),
            gid(7, GidKind::RoceV2, 0, 0),
        ];
        assert_eq!(best_gid(&table).map(|gid| gid.index), Some(7));
        assert_eq!(best_gid(&table[..3]).map(|gid| gid.index), Some(1));
        assert_eq!(best_gid(&table[..1]).map(|gid| gid.index), Some(0));
        assert_eq!(best_gid(&[]), None);
    }

    #[test]
    fn an_empty_entry_is_no_address() {
        let mut entry = ibv_gid_entry {
            gid: ibv_gid { raw: [0; 16] },
            gid_index: 3,
            port_num: 1,
            gid_type: 2,
            ndev_ifindex: 1,
        };
        assert_eq!(Gid::from_entry(&entry), None);
        entry.gid.raw[15] = 1;
        entry.gid_type = 99;
        assert_eq!(Gid::from_entry(&entry).map(|gid| gid.kind), Some(GidKind::Unknown(99)));
        entry.gid_index = 256;
        assert_eq!(Gid::from_entry(&entry), None);
    }
}
