//! The kernel's side: modules, and the files through which a process reaches it.

use std::os::unix::fs::MetadataExt;

use crate::doctor::machine::Machine;
use crate::doctor::report::{Finding, Verdict};
use crate::doctor::verbs::Verbs;

const UVERBS: &str = "sys/class/infiniband_verbs";

pub(in crate::doctor) fn modules(machine: &Machine) -> Finding {
    // A part that is compiled into the kernel has no module, but its class.
    let there = [("ib_core", "sys/class/infiniband"), ("ib_uverbs", UVERBS)].map(|(module, class)| {
        (module, machine.exists(&format!("sys/module/{module}")) || machine.exists(class))
    });
    let missing: Vec<_> = there.iter().filter(|(_, there)| !there).map(|(module, _)| *module).collect();
    if missing.is_empty() {
        return Finding::new("kernel modules", Verdict::Ok, "ib_core and ib_uverbs are there");
    }
    let evidence = format!("not loaded: {}", missing.join(", "));
    Finding::new("kernel modules", Verdict::Fail, evidence)
        .remedy("sudo modprobe ib_uverbs (for a container: on its host; where there is none: install linux-modules-extra)")
}

pub(in crate::doctor) fn device_files(machine: &Machine, verbs: &Verbs) -> Finding {
    const CHECK: &str = "device files";
    let names: Vec<_> = machine.list(UVERBS).into_iter().filter(|name| name.starts_with("uverbs")).collect();
    if names.is_empty() {
        return Finding::new(CHECK, Verdict::Skipped, "the kernel offers no device to user space");
    }
    let user = User::of(machine);
    let (mut good, mut bad, mut remedies) = (Vec::new(), Vec::new(), Vec::new());
    for name in names {
        let path = format!("dev/infiniband/{name}");
        let Ok(file) = machine.path(&path).metadata() else {
            bad.push(format!("/{path} is missing"));
            remedies.push(format!("in a container: --device /{path}; elsewhere: restart udev"));
            continue;
        };
        let group = group_name(machine, file.gid());
        let described = format!("/{path} ({:04o}, {}:{group})", file.mode() & 0o7777, file.uid());
        match user.as_ref().map(|user| user.may_open(&file)) {
            Some(false) => {
                bad.push(format!(
                    "{described} is closed to user {}",
                    user.as_ref().map_or(0, |user| user.id)
                ));
                remedies.push(match file.mode() & 0o060 {
                    0o060 if file.gid() != 0 => {
                        format!("sudo usermod -aG {group} $(id -un), then log in again")
                    }
                    _ => {
                        format!("sudo chmod 666 /{path}, and a udev rule: KERNEL==\"uverbs*\", MODE=\"0666\"")
                    }
                });
            }
            _ => good.push(described),
        }
    }
    remedies.dedup();
    // Access lists and security modules are not in the mode: what was really opened has the last word.
    let opened = !verbs.ports().is_empty();
    match bad.is_empty() {
        true => Finding::new(CHECK, Verdict::Ok, good.join(", ")),
        false if opened => Finding::new(CHECK, Verdict::Warn, bad.join("; ")).remedy(remedies.join("; ")),
        false => Finding::new(CHECK, Verdict::Fail, bad.join("; ")).remedy(remedies.join("; ")),
    }
}

/// Whom this process acts as.
struct User {
    id: u32,
    groups: Vec<u32>,
}

impl User {
    fn of(machine: &Machine) -> Option<Self> {
        let numbers = |name| -> Option<Vec<u32>> {
            let field = machine.field("proc/self/status", name)?;
            Some(field.split_whitespace().filter_map(|number| number.parse().ok()).collect())
        };
        // Real, effective, saved, file system.
        let (ids, mut groups) = (numbers("Uid")?, numbers("Gid")?);
        groups.extend(numbers("Groups").unwrap_or_default());
        Some(Self { id: *ids.get(1)?, groups })
    }

    fn may_open(&self, file: &std::fs::Metadata) -> bool {
        const READ_WRITE: u32 = 0o6;
        let bits = match self.id {
            0 => return true,
            id if id == file.uid() => file.mode() >> 6,
            _ if self.groups.contains(&file.gid()) => file.mode() >> 3,
            _ => file.mode(),
        };
        bits & READ_WRITE == READ_WRITE
    }
}

fn group_name(machine: &Machine, id: u32) -> String {
    let groups = machine.read("etc/group").unwrap_or_default();
    let name = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id.to_string()).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| id.to_string())
}
