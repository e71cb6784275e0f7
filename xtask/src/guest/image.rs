//! What the guest boots: a kernel, an initial RAM disk with its modules, and a directory of RDMA packages.
//!
//! Owns a cache folder, named by the contents of this recipe, so that an edit makes a new one. Invariant: a folder of
//! the final name is complete; it is built under another name and renamed. Never installs anything: packages are
//! downloaded through a private apt state and unpacked.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use super::GuestError;

/// Runs first in the guest, from the RAM disk.
const INIT: &str = include_str!("init.sh");

/// Unpacked over the host's file system: user-space verbs, perftest, iproute2 and the libraries that a small host may
/// lack. The kernel comes on top.
const PACKAGES: &str = "busybox-static libibverbs1 ibverbs-providers librdmacm1 libibumad3 libnl-3-200 \
    libnl-route-3-200 perftest libpci3 zlib1g libudev1 iproute2 libmnl0 libbpf1 libelf1 libcap2 libcap2-bin libbsd0 libmd0 \
    libdb5.3 libxtables12 libtirpc3 libtirpc-common libgssapi-krb5-2 libkrb5-3 libk5crypto3 \
    libkrb5support0 libcom-err2 libkeyutils1 libssl3";

/// Loaded in this order, each after what it depends on. rxe needs crc32 before its first device, or adding the link
/// fails; the dependency is not in its module information.
const MODULES: &str = "crc32_generic crc32_pclmul crc32c_generic virtio_pci virtio_net 9pnet_virtio 9p overlay \
    dummy sch_netem sch_ingress cls_u32 act_gact rdma_rxe ib_uverbs rdma_ucm";

/// A bootable image.
pub(super) struct Image {
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
    /// Laid over the host's root.
    pub(super) packages: PathBuf,
}

/// The image, built if it is not in the cache.
pub(super) fn prepare() -> Result<Image, GuestError> {
    let mut hasher = DefaultHasher::new();
    (INIT, PACKAGES, MODULES, include_str!("image.rs")).hash(&mut hasher);
    let folder = cache()?.join(format!("image-{:016x}", hasher.finish()));
    if !folder.exists() {
        eprintln!("xtask: building the guest image in {}", folder.display());
        let draft = folder.with_extension(format!("draft-{}", std::process::id()));
        let built = build(&draft);
        if built.is_ok() && !folder.exists() {
            fs::rename(&draft, &folder)?;
        }
        if draft.exists() {
            fs::remove_dir_all(&draft)?;
        }
        built?;
    }
    Ok(Image {
        kernel: folder.join("vmlinuz"),
        initrd: folder.join("initrd"),
        packages: folder.join("packages"),
    })
}

/// `$BYWAY_GUEST_CACHE`, or a folder in the user's cache.
pub(super) fn cache() -> Result<PathBuf, GuestError> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("BYWAY_GUEST_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|path| path.join("byway-guest")))
        .or_else(|| set("HOME").map(|path| path.join(".cache/byway-guest")))
        .ok_or_else(|| GuestError::Prepare("neither BYWAY_GUEST_CACHE nor HOME is set".into()))?;
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn build(folder: &Path) -> Result<(), GuestError> {
    let (debs, packages, kernel) = (folder.join("debs"), folder.join("packages"), folder.join("kernel"));
    for path in [&debs, &packages, &kernel] {
        fs::create_dir_all(path)?;
    }
    download(folder, &debs)?;
    for deb in list(&debs)? {
        let is_kernel = deb.file_name().is_some_and(|name| name.to_string_lossy().starts_with("linux-image"));
        let target = if is_kernel { &kernel } else { &packages };
        succeed(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(target))?;
    }
    merge_usr(&packages)?;
    let version = list(&kernel.join("lib/modules"))?
        .pop()
        .ok_or_else(|| GuestError::Prepare("the kernel package has no modules".into()))?;
    let version = version.file_name().unwrap_or_default().to_string_lossy().into_owned();
    fs::copy(kernel.join(format!("boot/vmlinuz-{version}")), folder.join("vmlinuz"))?;
    let busybox = fs::read(packages.join("usr/bin/busybox"))?;
    let modules = modules(&kernel.join("lib/modules").join(&version))?;
    fs::write(folder.join("initrd"), archive(&busybox, &modules))?;
    fs::remove_dir_all(&kernel)?;
    fs::remove_dir_all(&debs)?;
    fs::remove_dir_all(folder.join("apt"))?;
    Ok(())
}

/// Downloads the packages through an apt state of our own, which needs no privilege.
fn download(folder: &Path, debs: &Path) -> Result<(), GuestError> {
    let state = folder.join("apt");
    for name in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(state.join(name))?;
    }
    let apt = |program: &str| {
        let mut command = Command::new(program);
        command.current_dir(debs);
        command.arg(format!("-oDir::State::lists={}", state.join("lists").display()));
        command.arg(format!("-oDir::Cache={}", state.join("cache").display()));
        // Downloading as another user would need access to our folder.
        command.arg("-oAPT::Sandbox::User=").arg("-qq");
        command
    };
    succeed(apt("apt-get").arg("update"))?;
    let dependencies = succeed(apt("apt-cache").args(["depends", "linux-image-amd64"]))?;
    let image =
        dependencies.lines().find_map(|line| line.trim().strip_prefix("Depends: ")).ok_or_else(|| {
            GuestError::Prepare("apt knows no linux-image-amd64: only amd64 Debian is supported".into())
        })?;
    succeed(apt("apt-get").args(["download", image]).args(PACKAGES.split_whitespace()))?;
    Ok(())
}

/// Some packages still ship `/bin`, `/sbin` and `/lib`, which are links into `/usr` on the host.
fn merge_usr(root: &Path) -> Result<(), GuestError> {
    for name in ["bin", "sbin", "lib", "lib64"] {
        let from = root.join(name);
        if from.is_dir() {
            succeed(Command::new("cp").arg("-a").arg(from.join(".")).arg({
                let to = root.join("usr").join(name);
                fs::create_dir_all(&to)?;
                to
            }))?;
            fs::remove_dir_all(&from)?;
        }
    }
    for name in ["usr/share/doc", "usr/share/man", "usr/share/locale"] {
        let path = root.join(name);
        if path.exists() {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// The modules to load, in order, with their contents.
fn modules(root: &Path) -> Result<Vec<(String, Vec<u8>)>, GuestError> {
    let mut files = BTreeMap::new();
    collect(root, &mut files)?;
    let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
    for name in MODULES.split_whitespace() {
        add_module(name, &files, &mut seen, &mut order)?;
    }
    Ok(order)
}

fn collect(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), GuestError> {
    for path in list(folder)? {
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension() == Some(OsStr::new("ko")) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().replace('-', "_");
            files.insert(name, path);
        }
    }
    Ok(())
}

fn add_module(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    seen: &mut BTreeSet<String>,
    order: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), GuestError> {
    let name = name.replace('-', "_");
    if !seen.insert(name.clone()) {
        return Ok(());
    }
    // A module that is no file is built into the kernel.
    let Some(path) = files.get(&name) else {
        return Ok(());
    };
    let bytes = fs::read(path)?;
    for dependency in dependencies(&bytes).split(',').filter(|name| !name.is_empty()) {
        add_module(dependency, files, seen, order)?;
    }
    order.push((name, bytes));
    Ok(())
}

/// What a module says it depends on: the text of `depends=` in its information section.
fn dependencies(module: &[u8]) -> String {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else {
        return String::new();
    };
    let text = module[at + key.len()..].iter().take_while(|&&byte| byte != 0);
    text.map(|&byte| char::from(byte)).collect()
}

/// The RAM disk: a cpio archive of the format that kernels read.
fn archive(busybox: &[u8], modules: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for folder in ["bin", "modules", "proc", "sys", "dev", "host", "packages", "rw", "new"] {
        entry(&mut archive, folder, 0o040_755, &[]);
    }
    entry(&mut archive, "bin/busybox", 0o100_755, busybox);
    entry(&mut archive, "init", 0o100_755, INIT.as_bytes());
    for (index, (name, bytes)) in modules.iter().enumerate() {
        entry(&mut archive, &format!("modules/{index:02}-{name}.ko"), 0o100_644, bytes);
    }
    entry(&mut archive, "TRAILER!!!", 0, &[]);
    archive
}

/// One cpio entry: a header of 13 hexadecimal numbers, the name, the bytes, each part padded to 4 bytes.
fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, bytes: &[u8]) {
    let inode = archive.len() as u32;
    let size = u32::try_from(bytes.len()).expect("a module or busybox is below 4 GiB");
    let numbers = [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name.len() as u32 + 1, 0];
    archive.extend_from_slice(b"070701");
    for number in numbers {
        archive.extend_from_slice(format!("{number:08x}").as_bytes());
    }
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend_from_slice(bytes);
    archive.resize(archive.len().next_multiple_of(4), 0);
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, GuestError> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths)
}

/// Runs a program to its successful end and returns what it printed.
fn succeed(command: &mut Command) -> Result<String, GuestError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| GuestError::Prepare(format!("{name} could not be started: {error}")))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(GuestError::Prepare(format!("{name} failed: {}", text.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_the_module() {
        assert_eq!(dependencies(b"license=GPL\0depends=ib_core,udp_tunnel\0x"), "ib_core,udp_tunnel");
        assert_eq!(dependencies(b"license=GPL\0depends=\0x"), "");
        assert_eq!(dependencies(b"nothing"), "");
    }

    #[test]
    fn entries_are_padded_to_four_bytes() {
        let mut archive = Vec::new();
        entry(&mut archive, "a", 0o100_644, b"12345");
        assert_eq!(archive.len() % 4, 0);
        assert!(archive.starts_with(b"070701"));
        assert_eq!(&archive[110..112], b"a\0");
        assert_eq!(&archive[112..117], b"12345");
    }
}
