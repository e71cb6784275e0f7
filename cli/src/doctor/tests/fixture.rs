//! Machines as folders.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use byway_rdma::nic::Mtu;
use byway_rdma::verbs::{Gid, GidKind, PortFacts, PortState, Unavailable, VerbsError, Wanted, choose};
use tempfile::TempDir;

use super::super::{Finding, Listing, Machine, Report, Trial, Verbs, examine};

/// What `ethtool -S` prints of an interface that was never paused.
const ETHTOOL: &str =
    "NIC statistics:\n     rx_packets: 17\n     rx_prio3_pause: 0\n     tx_prio3_pause: 0\n";

/// What `nft list ruleset` prints of an open machine.
const NFT: &str =
    "table inet filter {\n chain input {\n  type filter hook input priority filter; policy accept;\n }\n}\n";

/// A machine in the making.
pub(super) struct Fixture {
    folder: TempDir,
    pub(super) verbs: Verbs,
    pub(super) nft: Option<&'static str>,
    pub(super) ethtool: Option<&'static str>,
}

impl Fixture {
    /// A machine without RDMA, otherwise in order.
    pub(super) fn bare() -> Self {
        let none = || Unavailable::NoDevice;
        let verbs = Verbs { listing: Err(none()), trial: Err(none()) };
        let folder = TempDir::new().expect("a folder");
        let fixture = Self { folder, verbs, nft: Some(NFT), ethtool: Some(ETHTOOL) };
        // Nobody: neither the owner of any file here nor a member of its group.
        fixture.file("proc/self/status", "Name:\tx\nUid:\t4242\t4242\t4242\t4242\nGid:\t4242\t4242\t4242\t4242\nGroups:\t44 \nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-3\n");
        fixture.file("proc/self/limits", &limits("unlimited"));
        fixture.file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        fixture.file("sys/class/net/lo/ifindex", "1\n");
        for (node, cpus) in [(0, "0-3"), (1, "4-7")] {
            fixture.file(&format!("sys/devices/system/node/node{node}/cpulist"), &format!("{cpus}\n"));
        }
        for cpu in 0..8 {
            fixture
                .file(&format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"), "performance\n");
        }
        fixture
    }

    /// With the library and the kernel's side, but no device.
    fn with_software() -> Self {
        let fixture = Self::bare();
        fixture.file("usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0", "");
        fixture.file("sys/module/ib_core/refcnt", "1\n");
        fixture.file("sys/module/ib_uverbs/refcnt", "1\n");
        fixture.file("sys/class/infiniband_verbs/abi_version", "6\n");
        fixture.file("etc/group", "root:x:0:\nrdma:x:105:\n");
        fixture
    }

    /// A two-socket server with a ConnectX card in its first socket.
    pub(super) fn mlx5() -> Self {
        let mut fixture = Self::with_software();
        fixture.device("mlx5_0", "ens1", "100 Gb/sec (4X EDR)");
        fixture.link("sys/class/infiniband/mlx5_0/device/driver", "../../../bus/pci/drivers/mlx5_core");
        fixture.file("sys/class/infiniband/mlx5_0/device/numa_node", "0\n");
        fixture.file("sys/class/net/ens1/mtu", "9000\n");
        for name in ["port_rcv_errors", "port_xmit_discards", "port_rcv_data"] {
            let value = if name == "port_rcv_data" { "123456\n" } else { "0\n" };
            fixture.file(&format!("sys/class/infiniband/mlx5_0/ports/1/counters/{name}"), value);
        }
        for name in ["out_of_sequence", "rnr_nak_retry_err", "np_ecn_marked_roce_packets"] {
            fixture.file(&format!("sys/class/infiniband/mlx5_0/ports/1/hw_counters/{name}"), "0\n");
        }
        fixture.works(vec![port("mlx5_0", Mtu::B4096)]);
        fixture
    }

    /// A laptop with a software device on an ordinary interface.
    pub(super) fn rxe() -> Self {
        let mut fixture = Self::with_software();
        fixture.file("sys/module/rdma_rxe/refcnt", "1\n");
        fixture.device("rxe0", "eth0", "2.5 Gb/sec (1X SDR)");
        fixture.file("sys/class/net/eth0/mtu", "1500\n");
        fixture.file("sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_rnr_err", "0\n");
        fixture.works(vec![port("rxe0", Mtu::B1024)]);
        fixture
    }

    fn device(&self, name: &str, interface: &str, rate: &str) {
        let port = format!("sys/class/infiniband/{name}/ports/1");
        self.file(&format!("{port}/state"), "4: ACTIVE\n");
        self.file(&format!("{port}/phys_state"), "5: LinkUp\n");
        self.file(&format!("{port}/link_layer"), "Ethernet\n");
        self.file(&format!("{port}/rate"), &format!("{rate}\n"));
        let addresses = [
            ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "IB/RoCE v1"),
            ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
            ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
        ];
        for (index, (address, kind)) in addresses.into_iter().enumerate() {
            self.file(&format!("{port}/gids/{index}"), &format!("{address}\n"));
            if !kind.is_empty() {
                self.file(&format!("{port}/gid_attrs/types/{index}"), &format!("{kind}\n"));
                self.file(&format!("{port}/gid_attrs/ndevs/{index}"), &format!("{interface}\n"));
            }
        }
        self.file(&format!("sys/class/net/{interface}/ifindex"), "2\n");
        self.file("sys/class/infiniband_verbs/uverbs0/ibdev", &format!("{name}\n"));
        self.file("dev/infiniband/uverbs0", "");
        self.mode("dev/infiniband/uverbs0", 0o666);
    }

    /// What libibverbs says where it works.
    pub(super) fn works(&mut self, ports: Vec<PortFacts>) {
        self.decides(ports);
        self.verbs.trial = Ok(Trial { text: "the device under test".into() });
    }

    /// Lets libibverbs list these ports; the trial fails with the choice's reason.
    pub(super) fn decides(&mut self, ports: Vec<PortFacts>) {
        let decision = choose(&ports, &Wanted::default(), &[]);
        let again = choose(&ports, &Wanted::default(), &[]).chosen.err();
        self.verbs.trial = Err(again.unwrap_or(Unavailable::NoDevice));
        self.verbs.listing = Ok(Listing { ports, failed: Vec::new(), decision: Some(decision) });
    }

    pub(super) fn file(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a file's path")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    pub(super) fn mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.folder.path().join(path), fs::Permissions::from_mode(mode)).expect("ours");
    }

    pub(super) fn link(&self, path: &str, target: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a link's path")).expect("a folder");
        symlink(Path::new(target), path).expect("a link");
    }

    pub(super) fn remove(&self, path: &str) {
        let path = self.folder.path().join(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("it is there");
    }

    pub(super) fn machine(&self) -> Machine {
        let (nft, ethtool) = (self.nft, self.ethtool);
        Machine::new(self.folder.path(), move |program, _| {
            let answer = match program {
                "nft" => nft,
                "ethtool" => ethtool,
                _ => None,
            };
            answer.map(str::to_owned)
        })
    }

    pub(super) fn report(&self) -> Report {
        examine(&self.machine(), &self.verbs, None)
    }
}

/// The line of a check.
pub(super) fn line<'a>(report: &'a Report, check: &str) -> &'a Finding {
    let found = report.checks.iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("no line about {check}: {}", report.text(false)))
}

/// An active RoCE port with one address, on the interface of index 2.
pub(super) fn port(device: &str, mtu: Mtu) -> PortFacts {
    let mut raw = [0; 16];
    raw[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
    PortFacts {
        device: device.into(),
        port: 1,
        iwarp: false,
        state: PortState::Active,
        mtu: Some(mtu),
        ethernet: true,
        gids: vec![Gid { index: 1, kind: GidKind::RoceV2, raw, interface: 2 }],
        interfaces: vec![2],
    }
}

/// The line of `/proc/self/limits` that matters, among others.
pub(super) fn limits(locked: &str) -> String {
    format!(
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max stack size            8388608              unlimited            bytes     \n\
         Max locked memory         {locked:<20} {locked:<20} bytes     \n"
    )
}

/// A verb that failed with a system error.
pub(super) fn failed(verb: &'static str, object: &str, code: i32) -> VerbsError {
    VerbsError { verb, object: object.into(), source: std::io::Error::from_raw_os_error(code) }
}
