//! Which device, port and address a connection should use.
//!
//! Owns the decision: [`choose`], a function over plain values, so that every rule is tested without a device.
//! In this order:
//! 1. what was asked for, and nothing else, when something was ([`Wanted`]);
//! 2. the address that equals the connection's local one: the peer is known to be reachable from it;
//! 3. an address on the network interface that has the connection's address (or carries that one: a bond, a VLAN);
//! 4. the first port that works, one that is reachable beyond its link before one that is not.
//!
//! Within a port: routable RoCE before the older one, global before link-local ([`best_gid`]). Invariant: every port that
//! is not usable has a reason. Never looks at the system.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::device::PortState;
use super::error::Unavailable;
use super::gid::{Gid, best_gid};
use super::settings::{Origin, Wanted};
use crate::nic::Mtu;

/// A port, as far as the choice depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortFacts {
    /// The kernel's name of its device.
    pub device: String,
    /// From 1.
    pub port: u8,
    /// Whether the device speaks iWARP, which lacks an operation that is needed.
    pub iwarp: bool,
    /// Whether it can carry traffic.
    pub state: PortState,
    /// The largest packet payload; `None` when the driver gives no valid one.
    pub mtu: Option<Mtu>,
    /// Whether packets travel over Ethernet (RoCE).
    pub ethernet: bool,
    /// Its addresses.
    pub gids: Vec<Gid>,
    /// Indices of the network interfaces on the same port, also those that none of its addresses belongs to (IPoIB).
    pub interfaces: Vec<u32>,
}

/// What is to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The port's place in the list that was given.
    pub index: usize,
    /// The address.
    pub gid: Gid,
    /// The port's packet size.
    pub mtu: Mtu,
    /// The rule that decided.
    pub why: Why,
}

/// The rule that decided for an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Device or address was asked for.
    Asked(Origin),
    /// It is the connection's own address.
    SameAddress(IpAddr),
    /// It is on the network interface that has the connection's address.
    SameInterface(IpAddr),
    /// No device has to do with the connection's address; this is the first that works.
    NothingMatches(IpAddr),
    /// The connection has no address that tells devices apart; this is the first that works.
    First,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked(by) => write!(f, "asked for by {by}"),
            Self::SameAddress(local) => write!(f, "the connection's own address {local}"),
            Self::SameInterface(local) => write!(f, "on the network interface of {local}"),
            Self::NothingMatches(local) => {
                write!(f, "the first that works, since no device is on the network of {local}")
            }
            Self::First => f.write_str("the first that works"),
        }
    }
}

/// Why a port is out of the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another device or port was asked for.
    NotAsked(Origin),
    /// The device speaks iWARP.
    Iwarp,
    /// It carries no traffic.
    State(PortState),
    /// The driver gives no valid packet size.
    NoMtu,
    /// It has no address.
    NoGid,
    /// It has no address at the place that was asked for.
    NoSuchGid(u8, Origin),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked(by) => write!(f, "{by} asks for another one"),
            Self::Iwarp => f.write_str("iWARP, which has no write with immediate"),
            Self::State(state) => state.fmt(f),
            Self::NoMtu => f.write_str("the driver gives no valid packet size"),
            Self::NoGid => f.write_str("no address"),
            Self::NoSuchGid(index, by) => write!(f, "no address {index}, which {by} asks for"),
        }
    }
}

impl Refusal {
    /// How far the port is from being usable, in steps of who sets it up: the nearer, the likelier it is the one that
    /// the user means.
    fn distance(self) -> u8 {
        match self {
            Self::NoGid | Self::NoSuchGid(..) => 0,
            Self::NoMtu => 1,
            Self::State(_) => 2,
            Self::Iwarp => 3,
            Self::NotAsked(_) => 4,
        }
    }

    fn unavailable(self, port: &PortFacts) -> Unavailable {
        let device = port.device.clone();
        match self {
            // Only when nothing that was asked for is there, which was reported before.
            Self::NotAsked(_) => Unavailable::NoDevice,
            Self::Iwarp => Unavailable::Iwarp(device),
            Self::State(state) => Unavailable::PortDown { device, state: state.to_string() },
            Self::NoMtu => Unavailable::PortDown { device, state: "active without a packet size".into() },
            Self::NoGid => Unavailable::NoGid { device, port: port.port },
            Self::NoSuchGid(index, by) => Unavailable::NoSuchGid { device, port: port.port, index, by },
        }
    }
}

/// What came of a choice: each port is chosen, refused, or would have done as well.
#[derive(Debug)]
pub struct Decision {
    /// What to use; otherwise the reason of the port that the user most likely means.
    pub chosen: Result<Chosen, Unavailable>,
    /// Ports out of the question, by their place in the list that was given.
    pub refused: Vec<(usize, Refusal)>,
}

/// Decides; `interfaces` are the indices of those that have the connection's address or are below it.
pub fn choose(ports: &[PortFacts], wanted: &Wanted, interfaces: &[u32]) -> Decision {
    let mut best: Option<((Nearness, bool, usize), Gid, Mtu)> = None;
    let mut refused = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        match usable(port, wanted) {
            Ok((mtu, gids)) => {
                let (nearness, gid) = nearest(port, &gids, wanted.local, interfaces);
                let link_only = port.ethernet && gid.is_link_local();
                let rank = (nearness, link_only, index);
                if best.as_ref().is_none_or(|(other, ..)| rank < *other) {
                    best = Some((rank, gid, mtu));
                }
            }
            Err(refusal) => refused.push((index, refusal)),
        }
    }
    let chosen =
        best.map(|((nearness, _, index), gid, mtu)| Chosen { index, gid, mtu, why: why(nearness, wanted) });
    let chosen = chosen.ok_or_else(|| likeliest(ports, wanted, interfaces, &refused));
    Decision { chosen, refused }
}

/// The packet size of a port and the addresses that are in question.
fn usable(port: &PortFacts, wanted: &Wanted) -> Result<(Mtu, Vec<Gid>), Refusal> {
    if let Some(asked) = wanted.device.as_ref().filter(|asked| asked.value != port.device) {
        return Err(Refusal::NotAsked(asked.by));
    }
    if let Some(asked) = wanted.port.as_ref().filter(|asked| asked.value != port.port) {
        return Err(Refusal::NotAsked(asked.by));
    }
    if port.iwarp {
        return Err(Refusal::Iwarp);
    }
    if port.state != PortState::Active {
        return Err(Refusal::State(port.state));
    }
    let mtu = port.mtu.ok_or(Refusal::NoMtu)?;
    let mut gids = port.gids.clone();
    if let Some(asked) = &wanted.gid_index {
        gids.retain(|gid| gid.index == asked.value);
        if gids.is_empty() {
            return Err(Refusal::NoSuchGid(asked.value, asked.by));
        }
    }
    if gids.is_empty() {
        return Err(Refusal::NoGid);
    }
    Ok((mtu, gids))
}

/// How an address relates to the connection's; the first is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Nearness {
    Same,
    Interface,
    Port,
    Unrelated,
}

/// The best address of a port. There is at least one.
fn nearest(port: &PortFacts, gids: &[Gid], local: Option<IpAddr>, interfaces: &[u32]) -> (Nearness, Gid) {
    let among = |near: &dyn Fn(&Gid) -> bool| {
        best_gid(&gids.iter().copied().filter(|gid| near(gid)).collect::<Vec<_>>())
    };
    if let Some(local) = local.map(as_gid)
        && let Some(gid) = among(&|gid| gid.raw == local)
    {
        return (Nearness::Same, gid);
    }
    if let Some(gid) = among(&|gid| interfaces.contains(&gid.interface)) {
        return (Nearness::Interface, gid);
    }
    let shares = port.interfaces.iter().any(|interface| interfaces.contains(interface));
    let nearness = if shares { Nearness::Port } else { Nearness::Unrelated };
    (nearness, best_gid(gids).expect("a usable port has an address"))
}

fn why(nearness: Nearness, wanted: &Wanted) -> Why {
    let asked = wanted.gid_index.as_ref().map(|asked| asked.by);
    let device = wanted.device.as_ref().map(|asked| asked.by);
    let device = device.or(wanted.port.as_ref().map(|asked| asked.by));
    match (asked, nearness, wanted.local) {
        (Some(by), ..) => Why::Asked(by),
        (None, Nearness::Same, Some(local)) => Why::SameAddress(local),
        (None, Nearness::Interface | Nearness::Port, Some(local)) => Why::SameInterface(local),
        (None, _, local) => match (device, local) {
            (Some(by), _) => Why::Asked(by),
            (None, Some(local)) => Why::NothingMatches(local),
            (None, None) => Why::First,
        },
    }
}

/// The reason of the port that the user most likely means: on the connection's interface, nearest to being usable, first.
fn likeliest(
    ports: &[PortFacts],
    wanted: &Wanted,
    interfaces: &[u32],
    refused: &[(usize, Refusal)],
) -> Unavailable {
    let named = |port: &&PortFacts| wanted.device.as_ref().is_none_or(|asked| asked.value == port.device);
    if let Some(asked) = wanted.device.as_ref().filter(|_| !ports.iter().any(|port| named(&port))) {
        let mut present: Vec<_> = ports.iter().map(|port| port.device.clone()).collect();
        present.dedup();
        return Unavailable::NoSuchDevice { name: asked.value.clone(), by: asked.by, present };
    }
    if let Some(asked) = &wanted.port
        && let Some(port) = ports.iter().find(named)
        && !ports.iter().filter(named).any(|port| port.port == asked.value)
    {
        return Unavailable::NoSuchPort { device: port.device.clone(), port: asked.value, by: asked.by };
    }
    let likely = refused.iter().min_by_key(|(index, refusal)| {
        let elsewhere = !ports[*index].interfaces.iter().any(|interface| interfaces.contains(interface));
        (matches!(refusal, Refusal::NotAsked(_)), elsewhere, refusal.distance(), *index)
    });
    likely.map_or(Unavailable::NoDevice, |(index, refusal)| refusal.unavailable(&ports[*index]))
}

/// The form that RoCE gives an IP address.
fn as_gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// An address of a port as people write it: an IPv4 address where it is one.
pub fn gid_text(raw: &[u8; 16]) -> String {
    IpAddr::V6(Ipv6Addr::from(*raw)).to_canonical().to_string()
}

#[cfg(test)]
mod tests;
