//! Network interfaces, as far as they tell which RDMA port a connection is near.
//!
//! Owns the list of an address's interfaces. Invariant: what cannot be found out is left out, since a choice without it is
//! still right, only less well aimed. Never fails.
#![expect(unsafe_code, reason = "getifaddrs")]

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::{fs, ptr};

/// A bond of VLANs over a bridge has three levels; a bound for what the file system may claim.
const LEVELS_MAX: usize = 8;

const CLASS: &str = "/sys/class/net";

/// The indices of the interfaces that have this address, and of those below them (the ports of a bond, the device of a
/// VLAN): RDMA addresses can belong to either.
pub(super) fn interfaces_of(address: IpAddr) -> Vec<u32> {
    let mut names = names_of(address);
    let mut from = 0;
    for _ in 0..LEVELS_MAX {
        let lower: Vec<_> = names[from..].iter().flat_map(|name| lower_of(name)).collect();
        from = names.len();
        names.extend(lower);
    }
    let mut indices: Vec<_> = names.iter().filter_map(|name| index_of(name)).collect();
    indices.sort_unstable();
    indices.dedup();
    indices
}

/// The indices of the interfaces that are made of a device's port.
pub(super) fn interfaces_on(device: &str, port: u8) -> Vec<u32> {
    let entries = fs::read_dir(CLASS).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let on_port = |name: &String| {
        let folder = format!("{CLASS}/{name}");
        let number = |file| fs::read_to_string(format!("{folder}/{file}")).ok()?.trim().parse::<u8>().ok();
        // Counted from 0 here.
        fs::exists(format!("{folder}/device/infiniband/{device}")).unwrap_or(false)
            && number("dev_port").unwrap_or(0).checked_add(1) == Some(port)
    };
    names.filter(on_port).filter_map(|name| index_of(&name)).collect()
}

/// The index of an interface.
pub(super) fn index_of(name: &str) -> Option<u32> {
    fs::read_to_string(format!("{CLASS}/{name}/ifindex")).ok()?.trim().parse().ok()
}

fn lower_of(name: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("{CLASS}/{name}")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("lower_").map(str::to_owned)).collect()
}

fn names_of(address: IpAddr) -> Vec<String> {
    let (mut first, mut names) = (ptr::null_mut(), Vec::new());
    // SAFETY: `first` is writable; on success it is the head of a list that we free below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return names;
    }
    let mut next = first;
    while !next.is_null() {
        // SAFETY: an entry of the list, which is not freed yet.
        let entry = unsafe { &*next };
        if address_of(entry.ifa_addr) == Some(address) {
            // SAFETY: the name of an entry is a terminated string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            names.push(name.to_string_lossy().into_owned());
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    names
}

/// The IP address in an entry of the list; null and other families have none.
fn address_of(raw: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null, or a socket address that lives as long as the list.
    let family = unsafe { raw.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of this family has this form.
            let address = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_on_one_interface() {
        let interfaces = interfaces_of(IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(interfaces, index_of("lo").into_iter().collect::<Vec<_>>());
        assert_eq!(interfaces_of(IpAddr::from([203, 0, 113, 77])), []);
        assert_eq!(interfaces_on("no_such_device", 1), []);
    }
}
