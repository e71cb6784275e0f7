use super::super::gid::GidKind;
use super::super::settings::{Asked, DEVICE_VARIABLE};
use super::*;

const V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn v4(last: u8) -> [u8; 16] {
    as_gid(IpAddr::from([10, 0, 0, last]))
}

fn gid(index: u8, kind: GidKind, raw: [u8; 16], interface: u32) -> Gid {
    Gid { index, kind, raw, interface }
}

/// A RoCE port as drivers fill it: both kinds of each address. `last` is that of its IPv4 address.
fn roce(device: &str, last: u8, interface: u32) -> PortFacts {
    use GidKind::{RoceV1, RoceV2};
    let gids = vec![
        gid(0, RoceV1, LINK_LOCAL, interface),
        gid(1, RoceV2, LINK_LOCAL, interface),
        gid(2, RoceV1, v4(last), interface),
        gid(3, RoceV2, v4(last), interface),
    ];
    PortFacts {
        device: device.into(),
        port: 1,
        iwarp: false,
        state: PortState::Active,
        mtu: Some(Mtu::B4096),
        ethernet: true,
        gids,
        interfaces: vec![interface],
    }
}

fn infiniband(device: &str, port: u8, interface: u32) -> PortFacts {
    let gids = vec![gid(0, GidKind::InfiniBand, LINK_LOCAL, 0)];
    PortFacts { port, ethernet: false, gids, ..roce(device, 0, interface) }
}

fn local(address: impl Into<IpAddr>) -> Wanted {
    Wanted { local: Some(address.into()), ..Wanted::default() }
}

fn asked<T>(value: T) -> Option<Asked<T>> {
    Some(Asked { value, by: Origin::Variable(DEVICE_VARIABLE) })
}

#[test]
fn the_nearest_address_wins() {
    let two = [roce("mlx5_0", 1, 5), roce("mlx5_1", 2, 6)];
    let mut with_v6 = two.clone();
    with_v6[1].gids.push(gid(9, GidKind::RoceV2, V6, 6));
    let mut vlan = two.clone();
    vlan[1].gids.push(gid(7, GidKind::RoceV2, v4(77), 60));
    let fabric = [roce("mlx5_0", 1, 5), infiniband("mlx5_1", 1, 0), infiniband("mlx5_1", 2, 8)];
    let mut link_only = two.clone();
    link_only[0].gids.truncate(2);
    let mut old = vec![roce("mlx4_0", 1, 5)];
    old[0].gids.retain(|gid| gid.kind == GidKind::RoceV1);
    let here = IpAddr::from([10, 0, 0, 2]);
    let there = IpAddr::from([192, 168, 0, 1]);
    let v6 = IpAddr::from(V6);
    // Ports, local address, its interfaces; expected port and address, and the rule.
    type Case<'a> = (&'a str, &'a [PortFacts], Wanted, &'a [u32], (usize, u8), Why);
    let table: &[Case<'_>] = &[
        ("no local address", &two, Wanted::default(), &[], (0, 3), Why::First),
        ("IPv4", &two, local(here), &[6], (1, 3), Why::SameAddress(here)),
        ("IPv6", &with_v6, local(v6), &[6], (1, 9), Why::SameAddress(v6)),
        ("the same interface", &two, local(there), &[6], (1, 3), Why::SameInterface(there)),
        ("a VLAN's address first", &vlan, local(there), &[60], (1, 7), Why::SameInterface(there)),
        ("IP over InfiniBand", &fabric, local(there), &[8], (2, 0), Why::SameInterface(there)),
        ("another network", &two, local(there), &[9], (0, 3), Why::NothingMatches(there)),
        ("reachable before link-local", &link_only, Wanted::default(), &[], (1, 3), Why::First),
        ("InfiniBand is no link-local", &fabric[1..], Wanted::default(), &[], (0, 0), Why::First),
        ("nothing but RoCE v1", &old, Wanted::default(), &[], (0, 2), Why::First),
    ];
    for (name, ports, wanted, interfaces, expected, why) in table {
        let chosen = choose(ports, wanted, interfaces).chosen.expect(name);
        assert_eq!((chosen.index, chosen.gid.index), *expected, "{name}");
        assert_eq!(chosen.why, *why, "{name}");
    }
}

#[test]
fn what_is_asked_for_is_used_or_nothing() {
    let two = [roce("mlx5_0", 1, 5), roce("mlx5_1", 2, 6)];
    let here = IpAddr::from([10, 0, 0, 1]);
    let by = Origin::Variable(DEVICE_VARIABLE);
    let device = Wanted { device: asked("mlx5_1".into()), ..local(here) };
    let decision = choose(&two, &device, &[5]);
    let chosen = decision.chosen.expect("it is there");
    assert_eq!((chosen.index, chosen.gid.index, chosen.why), (1, 3, Why::Asked(by)));
    assert_eq!(decision.refused, [(0, Refusal::NotAsked(by))]);
    let index = Wanted { gid_index: asked(2), ..local(here) };
    let chosen = choose(&two, &index, &[5]).chosen.expect("it is there");
    assert_eq!((chosen.index, chosen.gid.index, chosen.why), (0, 2, Why::Asked(by)));

    let refused = |wanted: Wanted| choose(&two, &wanted, &[]).chosen.expect_err("not there").to_string();
    assert_eq!(
        refused(Wanted { device: asked("mlx5_9".into()), ..Wanted::default() }),
        "there is no RDMA device named mlx5_9, which BYWAY_RDMA_DEVICE asks for; there is mlx5_0, mlx5_1"
    );
    assert_eq!(
        refused(Wanted { device: asked("mlx5_1".into()), port: asked(2), ..Wanted::default() }),
        "mlx5_1 has no port 2, which BYWAY_RDMA_DEVICE asks for"
    );
    let text = refused(Wanted { gid_index: asked(17), ..Wanted::default() });
    assert!(
        text.starts_with("port 1 of mlx5_0 has no address 17, which BYWAY_RDMA_DEVICE asks for"),
        "{text}"
    );
}

#[test]
fn every_refused_port_has_a_reason_and_the_likeliest_is_given() {
    let down = |port: PortFacts| PortFacts { state: PortState::Down, ..port };
    let bare = |port: PortFacts| PortFacts { gids: Vec::new(), ..port };
    let iwarp = |port: PortFacts| PortFacts { iwarp: true, ..port };
    let sizeless = |port: PortFacts| PortFacts { mtu: None, ..port };
    let ports = [
        iwarp(roce("irdma0", 1, 4)),
        down(roce("mlx5_0", 1, 5)),
        bare(roce("mlx5_1", 2, 6)),
        sizeless(roce("mlx5_2", 3, 7)),
    ];
    let decision = choose(&ports, &Wanted::default(), &[]);
    let refusals: Vec<_> = decision.refused.iter().map(|(_, refusal)| *refusal).collect();
    let expected = [Refusal::Iwarp, Refusal::State(PortState::Down), Refusal::NoGid, Refusal::NoMtu];
    assert_eq!(refusals, expected);
    let text = |ports: &[PortFacts], interfaces: &[u32]| {
        choose(ports, &local([10, 9, 9, 9]), interfaces).chosen.expect_err("unusable").to_string()
    };
    assert!(text(&ports, &[]).starts_with("port 1 of mlx5_1 has no address"), "nearest to usable");
    assert!(text(&ports, &[5]).starts_with("no port of mlx5_0 is active"), "on the connection's interface");
    assert!(text(&ports[..1], &[]).starts_with("irdma0 speaks iWARP"));
    assert_eq!(text(&[], &[]), "there is no RDMA device");
}

#[test]
fn one_usable_port_is_enough() {
    let ports = [PortFacts { iwarp: true, ..roce("irdma0", 1, 4) }, roce("mlx5_0", 2, 5)];
    let chosen = choose(&ports, &local([10, 0, 0, 1]), &[4]).chosen.expect("the other device");
    assert_eq!(chosen.index, 1);
}

#[test]
fn addresses_read_as_people_write_them() {
    assert_eq!(gid_text(&v4(1)), "10.0.0.1");
    assert_eq!(gid_text(&LINK_LOCAL), "fe80::1");
}
