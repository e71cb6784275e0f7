//! libibverbs: is it there, and which.

use byway_rdma::verbs::Unavailable;

use crate::doctor::machine::Machine;
use crate::doctor::report::{Finding, Verdict};
use crate::doctor::verbs::Verbs;

const NAME: &str = "libibverbs";

const INSTALL: &str = "sudo apt install libibverbs1 ibverbs-providers (Debian, Ubuntu); sudo dnf install libibverbs (Fedora, RHEL)";

/// The release from which the library lists all addresses of a port with their kinds at once. With an older one the
/// kinds come from sysfs, which gives RoCE v1 and InfiniBand one name.
const LISTS_ADDRESSES: u32 = 32;

pub(in crate::doctor) fn library(machine: &Machine, verbs: &Verbs) -> Finding {
    let found = loaded(machine).or_else(|| installed(machine));
    match (&verbs.listing, found) {
        (Err(Unavailable::Library(detail)), Some(path)) => {
            let evidence = format!("{path} is there, but cannot be loaded: {detail}");
            Finding::new(NAME, Verdict::Fail, evidence).remedy(format!("install it again: {INSTALL}"))
        }
        (Err(Unavailable::Library(detail)), None) => {
            Finding::new(NAME, Verdict::Fail, detail.clone()).remedy(INSTALL)
        }
        (Err(Unavailable::Symbol(detail)), found) => {
            let evidence = format!("{}: {detail}", found.unwrap_or_default());
            Finding::new(NAME, Verdict::Fail, evidence).remedy("update rdma-core to version 17 or later")
        }
        (_, None) => {
            Finding::new(NAME, Verdict::Ok, "loaded; its file was not found, so its version is not known")
        }
        (_, Some(path)) => match release(&path) {
            Some(release) if release < LISTS_ADDRESSES => {
                Finding::new(NAME, Verdict::Warn, format!("{path}, rdma-core {release}")).remedy(
                    "update rdma-core to version 32 or later, which tells the kinds of addresses for sure",
                )
            }
            Some(release) => Finding::new(NAME, Verdict::Ok, format!("{path}, rdma-core {release}")),
            None => Finding::new(NAME, Verdict::Ok, path),
        },
    }
}

/// The library that this process has loaded.
fn loaded(machine: &Machine) -> Option<String> {
    let maps = machine.read("proc/self/maps")?;
    let path = maps
        .lines()
        .find_map(|line| line.split_once('/').filter(|(_, path)| path.contains("/libibverbs.so")))?
        .1;
    Some(format!("/{path}"))
}

/// The library where distributions put it.
fn installed(machine: &Machine) -> Option<String> {
    let mut folders: Vec<String> =
        ["usr/lib64", "usr/local/lib", "usr/lib", "lib64", "lib"].map(String::from).into();
    for base in ["usr/lib", "lib"] {
        let names = machine.list(base).into_iter().filter(|name| name.contains("-linux-"));
        folders.extend(names.map(|name| format!("{base}/{name}")));
    }
    let path_in = |folder: &String| {
        let names = machine.list(folder).into_iter().filter(|name| name.starts_with("libibverbs.so.1"));
        // The longest name has the whole version.
        names.max_by_key(String::len).map(|name| format!("/{folder}/{name}"))
    };
    folders.iter().find_map(path_in)
}

/// The release of rdma-core that a file name such as `libibverbs.so.1.14.44.0` ends with.
fn release(path: &str) -> Option<u32> {
    let (_, version) = path.rsplit_once(".so.")?;
    version.split('.').nth(2)?.parse().ok()
}
