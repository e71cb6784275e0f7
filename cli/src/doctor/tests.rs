use byway_rdma::nic::Mtu;
use byway_rdma::protocol::offer::Extension;
use byway_rdma::verbs::{PortFacts, PortState, Unavailable};

use self::fixture::{Fixture, failed, limits, line, port};
use super::report::Report;
use super::{Listing, Verdict};

mod fixture;

/// The checks that did not conclude `ok` or `skipped`, but for the conclusion itself.
fn complaints(report: &Report) -> Vec<&str> {
    let bad =
        report.checks.iter().filter(|finding| !matches!(finding.verdict, Verdict::Ok | Verdict::Skipped));
    bad.map(|finding| finding.check.as_str()).filter(|check| *check != "RDMA").collect()
}

#[test]
fn a_healthy_server_has_nothing_to_mend() {
    let report = Fixture::mlx5().report();
    assert_eq!(complaints(&report), [""; 0], "{}", report.text(false));
    assert!(report.summary.usable);
    assert_eq!(report.summary.text, "RDMA on the device under test");
    let checks: Vec<_> = report.checks.iter().map(|finding| finding.check.as_str()).collect();
    let expected = [
        "libibverbs",
        "kernel modules",
        "device",
        "device files",
        "port mlx5_0/1",
        "addresses mlx5_0/1",
        "choice",
        "MTU mlx5_0/1",
        "locked memory",
        "huge pages",
        "NUMA node mlx5_0",
        "CPU governor",
        "counters mlx5_0/1",
        "pause ens1",
        "firewall",
        "RDMA",
    ];
    assert_eq!(checks, expected, "in the order in which one looks");
    assert_eq!(line(&report, "device").evidence, "mlx5_0 (mlx5_core)");
    assert_eq!(line(&report, "port mlx5_0/1").evidence, "active, Ethernet, 100 Gb/sec (4X EDR)");
    assert_eq!(
        line(&report, "addresses mlx5_0/1").evidence,
        "0 fe80::e42:a1ff:fe00:1 (RoCE v1, ens1), 1 10.0.0.1 (RoCE v2, ens1)"
    );
    assert!(line(&report, "libibverbs").evidence.ends_with("libibverbs.so.1.14.44.0, rdma-core 44"));
}

#[test]
fn a_software_device_is_as_good() {
    let report = Fixture::rxe().report();
    assert_eq!(complaints(&report), [""; 0], "{}", report.text(false));
    assert_eq!(line(&report, "device").evidence, "rxe0 (software: rdma_rxe)");
    assert_eq!(line(&report, "NUMA node rxe0").verdict, Verdict::Skipped);
    let mtu = line(&report, "MTU rxe0/1");
    assert_eq!(mtu.evidence, "1024 bytes a packet, eth0 carries 1500");
    assert!(mtu.remedy.as_ref().is_some_and(|remedy| remedy.contains("ip link set eth0 mtu 4192")));
}

#[test]
fn without_the_library_the_package_is_named() {
    let mut fixture = Fixture::bare();
    let reason = || Unavailable::Library("libibverbs.so.1: cannot open shared object file".into());
    (fixture.verbs.listing, fixture.verbs.trial) = (Err(reason()), Err(reason()));
    let report = fixture.report();
    let library = line(&report, "libibverbs");
    assert_eq!(library.verdict, Verdict::Fail);
    assert!(library.remedy.as_ref().is_some_and(|remedy| remedy.contains("apt install libibverbs1")));
    assert_eq!(line(&report, "kernel modules").evidence, "not loaded: ib_core, ib_uverbs");
    assert_eq!(line(&report, "choice").verdict, Verdict::Skipped);
    assert!(!report.summary.usable);
    // The sentence of a connection that falls back.
    assert_eq!(report.summary.text, format!("no RDMA: {}", reason()));
    assert_eq!(line(&report, "RDMA").evidence, report.summary.text);

    fixture.file("usr/lib64/libibverbs.so.1.14.44.0", "not a library");
    assert!(line(&fixture.report(), "libibverbs").evidence.contains("is there, but cannot be loaded"));
}

#[test]
fn old_and_broken_libraries_are_told_apart() {
    let mut fixture = Fixture::mlx5();
    fixture.remove("usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0");
    let maps = "7f00-7f01 r-xp 00000000 08:01 42   /opt/lib/libibverbs.so.1.5.28.0\n";
    fixture.file("proc/self/maps", maps);
    let report = fixture.report();
    assert_eq!(line(&report, "libibverbs").verdict, Verdict::Warn);
    assert_eq!(line(&report, "libibverbs").evidence, "/opt/lib/libibverbs.so.1.5.28.0, rdma-core 28");
    fixture.verbs.listing = Err(Unavailable::Symbol("undefined symbol: ibv_fork_init".into()));
    assert_eq!(line(&fixture.report(), "libibverbs").verdict, Verdict::Fail);
}

#[test]
fn a_missing_companion_module_is_named() {
    let fixture = Fixture::bare();
    fixture.file("sys/module/mlx5_core/refcnt", "1\n");
    let report = fixture.report();
    assert_eq!(line(&report, "device").remedy.as_deref(), Some("sudo modprobe mlx5_ib"));
    fixture.file("sys/module/mlx5_ib/refcnt", "1\n");
    fixture.file("sys/class/net/dummy0/operstate", "down\n");
    fixture.file("sys/class/net/wlan0/operstate", "up\n");
    let report = fixture.report();
    let remedy = line(&report, "device").remedy.clone().unwrap_or_default();
    assert!(remedy.ends_with("sudo rdma link add rxe0 type rxe netdev wlan0"), "{remedy}");
}

#[test]
fn a_device_without_its_provider_is_named() {
    let mut fixture = Fixture::rxe();
    let reason = || Unavailable::Provider { devices: vec!["rxe0".into()] };
    (fixture.verbs.listing, fixture.verbs.trial) = (Err(reason()), Err(reason()));
    let report = fixture.report();
    assert_eq!(line(&report, "device").verdict, Verdict::Fail);
    assert!(line(&report, "device").evidence.ends_with("libibverbs has no provider for rxe0"));
}

#[test]
fn closed_device_files_are_found() {
    let mut fixture = Fixture::mlx5();
    fixture.mode("dev/infiniband/uverbs0", 0o600);
    // Some access list may allow what the mode does not.
    assert_eq!(line(&fixture.report(), "device files").verdict, Verdict::Warn);
    let unopened = vec![("mlx5_0".into(), failed("ibv_open_device", "mlx5_0", 13))];
    fixture.verbs.listing = Ok(Listing { ports: Vec::new(), failed: unopened, decision: None });
    fixture.verbs.trial = Err(failed("ibv_open_device", "mlx5_0", 13).into());
    let report = fixture.report();
    let files = line(&report, "device files");
    assert_eq!(files.verdict, Verdict::Fail);
    assert!(files.evidence.contains("/dev/infiniband/uverbs0 (0600, "), "{}", files.evidence);
    assert!(files.evidence.ends_with("is closed to user 4242"), "{}", files.evidence);
    assert_eq!(line(&report, "device").verdict, Verdict::Fail);
    assert_eq!(line(&report, "choice").evidence, "no device can be opened");
    assert!(report.summary.text.contains("give the user access to /dev/infiniband/uverbs*"));

    fixture.remove("dev/infiniband/uverbs0");
    let report = fixture.report();
    assert_eq!(line(&report, "device files").evidence, "/dev/infiniband/uverbs0 is missing");
    assert!(line(&report, "device files").remedy.as_ref().is_some_and(|text| text.contains("--device")));
}

#[test]
fn little_locked_memory_is_found() {
    let mut fixture = Fixture::mlx5();
    fixture.file("proc/self/limits", &limits("8388608"));
    let report = fixture.report();
    assert_eq!(line(&report, "locked memory").verdict, Verdict::Warn);
    assert!(report.summary.usable, "the trial went well");
    let source = failed("ibv_reg_mr", "1048576 bytes on mlx5_0", 12);
    fixture.file("proc/self/limits", &limits("65536"));
    fixture.verbs.trial = Err(Unavailable::LockedMemory { limit: Some(65536), source });
    let report = fixture.report();
    let memory = line(&report, "locked memory");
    assert_eq!(memory.verdict, Verdict::Fail);
    assert!(memory.evidence.starts_with("limit 64 KiB; ibv_reg_mr failed: "), "{}", memory.evidence);
    assert!(memory.remedy.as_ref().is_some_and(|remedy| remedy.contains("LimitMEMLOCK=infinity")));
    assert!(!report.summary.usable);
}

#[test]
fn a_container_without_addresses_is_found() {
    let mut fixture = Fixture::mlx5();
    for index in 0..2 {
        let file = format!("sys/class/infiniband/mlx5_0/ports/1/gids/{index}");
        fixture.file(&file, "0000:0000:0000:0000:0000:0000:0000:0000\n");
    }
    fixture.decides(vec![PortFacts { gids: Vec::new(), ..port("mlx5_0", Mtu::B4096) }]);
    let report = fixture.report();
    let addresses = line(&report, "addresses mlx5_0/1");
    assert_eq!(
        (addresses.verdict, addresses.evidence.as_str()),
        (Verdict::Fail, "3 entries, all of them zero")
    );
    assert!(addresses.remedy.as_ref().is_some_and(|remedy| remedy.contains("--network host")));
    assert_eq!(line(&report, "choice").verdict, Verdict::Fail);
    assert!(report.summary.text.starts_with("no RDMA: port 1 of mlx5_0 has no address"));
}

#[test]
fn addresses_that_reach_little_are_pointed_out() {
    let fixture = Fixture::mlx5();
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    fixture.file(&format!("{port}/gid_attrs/types/1"), "IB/RoCE v1\n");
    assert_eq!(line(&fixture.report(), "addresses mlx5_0/1").verdict, Verdict::Warn);
    fixture.file(&format!("{port}/gid_attrs/types/1"), "RoCE v2\n");
    fixture.file(&format!("{port}/gids/1"), "fe80:0000:0000:0000:0000:0000:0000:0002\n");
    let report = fixture.report();
    let remedy = line(&report, "addresses mlx5_0/1").remedy.clone().unwrap_or_default();
    assert!(remedy.contains("only peers on the same link"), "{remedy}");
}

#[test]
fn a_port_that_is_down_says_how_to_raise_it() {
    let mut fixture = Fixture::mlx5();
    let folder = "sys/class/infiniband/mlx5_0/ports/1";
    fixture.file(&format!("{folder}/state"), "1: DOWN\n");
    fixture.file(&format!("{folder}/phys_state"), "3: Disabled\n");
    fixture.decides(vec![PortFacts { state: PortState::Down, ..port("mlx5_0", Mtu::B4096) }]);
    let report = fixture.report();
    let found = line(&report, "port mlx5_0/1");
    assert_eq!(found.verdict, Verdict::Fail);
    assert_eq!(found.evidence, "down, link Disabled, Ethernet, 100 Gb/sec (4X EDR)");
    assert!(found.remedy.as_ref().is_some_and(|remedy| remedy.contains("ip link set ens1 up")));
    let both =
        ["mlx5_0", "mlx5_1"].map(|name| PortFacts { state: PortState::Down, ..port(name, Mtu::B4096) });
    fixture.decides(both.to_vec());
    let report = fixture.report();
    assert!(
        line(&report, "choice").evidence.ends_with("; not mlx5_0 port 1 (down), not mlx5_1 port 1 (down)")
    );
    fixture.file(&format!("{folder}/link_layer"), "InfiniBand\n");
    fixture.file(&format!("{folder}/state"), "2: INIT\n");
    let remedy = line(&fixture.report(), "port mlx5_0/1").remedy.clone().unwrap_or_default();
    assert!(remedy.contains("opensm"), "{remedy}");
}

#[test]
fn packets_that_do_not_fit_their_interface_are_found() {
    let fixture = Fixture::mlx5();
    fixture.file("sys/class/net/ens1/mtu", "1500\n");
    let report = fixture.report();
    let mtu = line(&report, "MTU mlx5_0/1");
    assert_eq!(
        (mtu.verdict, mtu.evidence.as_str()),
        (Verdict::Warn, "4096 bytes a packet, ens1 carries 1500")
    );
    assert!(mtu.remedy.as_ref().is_some_and(|remedy| remedy.contains("mtu 4192")));
    fixture.remove("sys/class/net/ens1");
    assert_eq!(line(&fixture.report(), "MTU mlx5_0/1").verdict, Verdict::Unknown);
}

#[test]
fn a_process_far_from_its_device_is_found() {
    let fixture = Fixture::mlx5();
    fixture.file("sys/class/infiniband/mlx5_0/device/numa_node", "1\n");
    let report = fixture.report();
    let numa = line(&report, "NUMA node mlx5_0");
    assert_eq!(numa.verdict, Verdict::Warn);
    assert_eq!(numa.evidence, "node 1 with CPUs 4-7; this process may run on 0-3");
    assert!(numa.remedy.as_ref().is_some_and(|remedy| remedy.contains("numactl --cpunodebind=1")));
    fixture.file("sys/class/infiniband/mlx5_0/device/numa_node", "-1\n");
    assert_eq!(line(&fixture.report(), "NUMA node mlx5_0").verdict, Verdict::Skipped);
    fixture.file("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave\n");
    assert_eq!(line(&fixture.report(), "CPU governor").verdict, Verdict::Warn);
}

#[test]
fn counters_that_tell_of_losses_are_explained() {
    let mut fixture = Fixture::mlx5();
    fixture.file("sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence", "17\n");
    fixture.file("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_discards", "3\n");
    fixture.ethtool = Some("     rx_prio3_pause: 12\n     tx_pause_storm_warning_events: 1\n");
    let report = fixture.report();
    let counters = line(&report, "counters mlx5_0/1");
    assert_eq!(
        (counters.verdict, counters.evidence.as_str()),
        (Verdict::Warn, "out_of_sequence 17, port_xmit_discards 3")
    );
    let remedy = counters.remedy.clone().unwrap_or_default();
    assert!(remedy.contains("packets were missing") && remedy.contains("dropped"), "{remedy}");
    let pause = line(&report, "pause ens1");
    assert_eq!((pause.verdict, pause.evidence.as_str()), (Verdict::Warn, "rx_prio3_pause 12"));
    assert!(report.summary.usable, "losses slow it down");
    fixture.ethtool = None;
    assert_eq!(line(&fixture.report(), "pause ens1").verdict, Verdict::Unknown);
}

#[test]
fn firewalls_are_read_where_they_can_be() {
    let table = [
        (None, Verdict::Unknown),
        (Some(""), Verdict::Ok),
        (Some("type filter hook input priority filter; policy drop;\n tcp dport 22 accept"), Verdict::Warn),
        (Some("type filter hook input priority filter; policy drop;\n udp dport 4791 accept"), Verdict::Ok),
        (Some("type filter hook input priority filter; policy accept;\n udp dport 4791 drop"), Verdict::Warn),
        (Some(":INPUT DROP [0:0]\n-A INPUT -p tcp --dport 22 -j ACCEPT"), Verdict::Warn),
        (Some(":INPUT ACCEPT [0:0]\n-A INPUT -p udp --dport 4791 -j REJECT"), Verdict::Warn),
        (Some("type filter hook forward priority filter; policy drop;"), Verdict::Ok),
    ];
    let mut fixture = Fixture::mlx5();
    for (rules, verdict) in table {
        fixture.nft = rules;
        assert_eq!(line(&fixture.report(), "firewall").verdict, verdict, "{rules:?}");
    }
}

#[test]
fn both_forms_hold_the_same() {
    let report = Fixture::rxe().report();
    let json: serde_json::Value = serde_json::from_str(&report.json()).expect("valid JSON");
    assert_eq!(json["summary"]["usable"], true);
    assert_eq!(json["summary"]["text"], "RDMA on the device under test");
    let counts =
        ["ok", "warn", "fail", "unknown", "skipped"].map(|name| json["summary"][name].as_u64().expect(name));
    let checks = json["checks"].as_array().expect("an array");
    assert_eq!(counts.iter().sum::<u64>(), checks.len() as u64);
    let mut lines = report.checks.iter();
    for check in checks {
        let finding = lines.next().expect("as many lines");
        let mut keys: Vec<_> = check.as_object().expect("an object").keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, ["check", "evidence", "remedy", "verdict"]);
        assert_eq!(check["check"], finding.check.as_str());
        assert_eq!(check["remedy"].as_str(), finding.remedy.as_deref());
    }
    let text = report.text(false);
    assert!(!text.contains('\x1b'), "no colours unless asked for");
    assert!(report.text(true).contains("\x1b[32mok     \x1b[0m"));
    let column = text.lines().next().and_then(|first| first.find("/usr/lib")).expect("evidence");
    for line in text.lines() {
        let gap = &line[column - 2..column];
        assert_eq!(gap, "  ", "aligned: {line}");
    }
}

#[test]
fn every_check_is_documented() {
    let documented = include_str!("../../../docs/doctor.md");
    let mut peer = super::peer::dial("a name without a port").ask(&Extension::Unavailable(String::new()));
    peer.name = "nobody".into();
    for fixture in [Fixture::mlx5(), Fixture::bare()] {
        let report = super::examine(&fixture.machine(), &fixture.verbs, Some(&peer));
        assert!(!report.summary.usable, "the peer counts");
        for finding in &report.checks {
            // Subjects are the names of a device or of an interface.
            let mut words = finding.check.split(' ').collect::<Vec<_>>();
            words.retain(|word| !word.contains("mlx5_0") && *word != "ens1");
            let check = words.join(" ");
            let row = format!("\n| `{check}");
            assert!(documented.contains(&row), "no row about {check}");
        }
    }
}
