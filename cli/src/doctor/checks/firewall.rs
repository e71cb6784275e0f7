//! Whether the host's packet filter lets RoCE v2 through.

use crate::doctor::machine::Machine;
use crate::doctor::report::{Finding, Verdict};
use crate::doctor::verbs::Verbs;

/// The UDP port of RoCE v2.
const PORT: &str = "4791";

const LOOK: &str =
    "sudo nft list ruleset | grep -e 4791 -e policy; sudo iptables-save | grep -e 4791 -e INPUT";

pub(in crate::doctor) fn firewall(machine: &Machine, verbs: &Verbs) -> Finding {
    const CHECK: &str = "firewall";
    if verbs.chosen().is_some_and(|port| !port.ethernet) {
        return Finding::new(CHECK, Verdict::Skipped, "InfiniBand is not filtered by the host");
    }
    let filters =
        ["nf_tables", "ip_tables"].iter().any(|module| machine.exists(&format!("sys/module/{module}")));
    let rules = [machine.output("nft", &["list", "ruleset"]), machine.output("iptables-save", &[])];
    let readable = rules.iter().any(Option::is_some);
    let rules = rules.into_iter().flatten().collect::<Vec<_>>().join("\n");
    if !readable {
        return match filters {
            true => {
                Finding::new(CHECK, Verdict::Unknown, "the rules cannot be read by this user").remedy(LOOK)
            }
            // A filter can be compiled into the kernel, but then its programs are there as a rule.
            false => Finding::new(CHECK, Verdict::Unknown, "no packet filter was found").remedy(LOOK),
        };
    }
    let about: Vec<_> = rules.lines().map(str::trim).filter(|line| line.contains(PORT)).collect();
    let allow =
        "sudo nft add rule inet filter input udp dport 4791 accept (or the same in your firewall's words)";
    if let Some(line) = about.iter().find(|line| refuses(line)) {
        return Finding::new(CHECK, Verdict::Warn, format!("a rule refuses RoCE: {line}")).remedy(
            "remove it: software devices are cut off by it, hardware mostly bypasses the host's filter",
        );
    }
    if let Some(line) = about.first() {
        return Finding::new(CHECK, Verdict::Ok, format!("a rule about RoCE: {line}"));
    }
    match rules.lines().find(|line| drops_by_default(line)) {
        Some(line) => {
            let evidence = format!("{}, and no rule about UDP port {PORT}", line.trim());
            Finding::new(CHECK, Verdict::Warn, evidence).remedy(allow)
        }
        None => Finding::new(CHECK, Verdict::Ok, format!("nothing refuses UDP port {PORT} by default")),
    }
}

fn refuses(line: &str) -> bool {
    line.split_whitespace().any(|word| matches!(word, "drop" | "reject" | "DROP" | "REJECT"))
}

/// The head of an input chain that drops what no rule accepts, in the words of nft or of iptables-save.
fn drops_by_default(line: &str) -> bool {
    let line = line.trim();
    (line.contains("hook input") && line.contains("policy drop")) || line.starts_with(":INPUT DROP")
}
