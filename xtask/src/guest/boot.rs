//! Boots one guest or two, passes their output on, and brings back status and files.
//!
//! Owns the QEMU processes of one job and its folder. Invariant: no process and no folder of a job outlives [`run`],
//! and each QEMU has a time limit of its own, should this program die. Never needs KVM: the guest is emulated.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use super::GuestError;
use super::image::{Image, cache};

pub(super) const QEMU: &str = "qemu-system-x86_64";

/// What `timeout` returns when the time was up.
const TIMED_OUT: u8 = 124;

const SCRIPT: &str = include_str!("script.sh");

/// Passed on to the guest when set.
const VARIABLES: [&str; 5] = ["HOME", "RUST_BACKTRACE", "RUST_LOG", "CARGO_HOME", "RUSTUP_HOME"];

/// What to run, and where.
pub(super) struct Job {
    pub(super) command: Vec<String>,
    pub(super) hosts: u32,
    pub(super) netem: Option<String>,
    pub(super) timeout_seconds: u32,
    pub(super) memory_mib: u32,
    pub(super) out: Option<PathBuf>,
    pub(super) device: bool,
    pub(super) folder: PathBuf,
}

impl Job {
    /// A command in one guest with a device, in the current folder.
    pub(super) fn new(command: Vec<String>) -> io::Result<Self> {
        Ok(Self {
            command,
            hosts: 1,
            netem: None,
            timeout_seconds: 300,
            memory_mib: 1024,
            out: None,
            device: true,
            folder: std::env::current_dir()?,
        })
    }
}

/// Fails when QEMU is not there.
pub(super) fn find_qemu() -> Result<(), GuestError> {
    match Command::new(QEMU).arg("--version").stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(GuestError::NoQemu),
    }
}

/// Runs the job; the result is the command's exit status.
pub(super) fn run(image: &Image, job: &Job) -> Result<u8, GuestError> {
    let shared = Folder::create()?;
    fs::create_dir(shared.0.join("out"))?;
    fs::write(shared.0.join("script"), script(job))?;
    // The last guest's end ends the job; the first of two is stopped then.
    let mut guests = (1..=job.hosts)
        .map(|host| Guest::boot(image, job, &shared.0, host))
        .collect::<Result<Vec<_>, _>>()?;
    let mut last = guests.pop().expect("a job has at least one guest");
    last.wait()?;
    drop(guests);
    if let Some(out) = &job.out {
        copy(&shared.0.join("out"), out)?;
    }
    let status = fs::read_to_string(shared.0.join(format!("status.{}", job.hosts)));
    match status.ok().and_then(|text| text.trim().parse().ok()) {
        Some(code) => Ok(code),
        None => {
            let console = fs::read(shared.0.join(format!("console.{}", job.hosts))).unwrap_or_default();
            let console = String::from_utf8_lossy(&console);
            let tail: Vec<&str> = console.lines().rev().take(20).collect();
            eprintln!(
                "xtask: the guest did not finish within {} s; its console ends with:",
                job.timeout_seconds
            );
            tail.iter().rev().for_each(|line| eprintln!("  {line}"));
            Ok(TIMED_OUT)
        }
    }
}

fn script(job: &Job) -> String {
    let mut text = String::new();
    for name in VARIABLES {
        if let Ok(value) = std::env::var(name) {
            text += &format!("export {name}={}\n", quote(&value));
        }
    }
    text += &format!(
        "GUEST_DEVICE={} GUEST_NETEM={}\n",
        u8::from(job.device),
        quote(job.netem.as_deref().unwrap_or(""))
    );
    text += "export BYWAY_GUEST=1\n";
    text += SCRIPT;
    let command: Vec<String> = job.command.iter().map(|word| quote(word)).collect();
    text += &format!("cd {} && {}\n", quote(&job.folder.to_string_lossy()), command.join(" "));
    text += "echo $? > /run/guest/status.$HOST\nsync\necho o > /proc/sysrq-trigger\nwhile :; do :; done\n";
    text
}

/// Makes one word of a shell command.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The folder that the guests share with us, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn create() -> Result<Self, GuestError> {
        // Short names: a socket's path may have 108 bytes.
        let base = cache()?;
        for number in 0..1000 {
            let path = base.join(format!("job-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(GuestError::Prepare(format!("{} is full of old jobs", base.display())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left in a cache.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One running QEMU.
struct Guest {
    process: Child,
    output: Option<JoinHandle<()>>,
}

impl Guest {
    fn boot(image: &Image, job: &Job, shared: &Path, host: u32) -> Result<Self, GuestError> {
        let share = |path: &Path, tag: &str, options: &str| {
            // A comma would end the path in QEMU's syntax; two stand for one.
            let path = path.to_string_lossy().replace(',', ",,");
            format!("local,path={path},mount_tag={tag},security_model=none{options}")
        };
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &job.timeout_seconds.to_string(), QEMU]);
        command.args(["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"]);
        command.args(["-smp", if job.hosts == 1 { "2" } else { "1" }]);
        command.args(["-m", &job.memory_mib.to_string()]);
        command.args(["-display", "none", "-monitor", "none", "-no-reboot"]);
        command.arg("-serial").arg(format!("file:{}", shared.join(format!("console.{host}")).display()));
        command.args(["-serial", "stdio"]);
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initrd);
        command.arg("-append");
        command.arg(format!("console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable guest={host}"));
        command.arg("-virtfs").arg(share(Path::new("/"), "host", ",readonly=on,multidevs=remap"));
        command.arg("-virtfs").arg(share(&image.packages, "packages", ",readonly=on"));
        command.arg("-virtfs").arg(share(shared, "job", ""));
        if job.hosts == 1 {
            command.args(["-net", "none"]);
        } else {
            let end = |host: u32| shared.join(format!("net.{host}")).display().to_string();
            let (local, remote) = (end(host), end(3 - host));
            command.arg("-netdev").arg(format!(
                "dgram,id=n,local.type=unix,local.path={local},remote.type=unix,remote.path={remote}"
            ));
            command
                .arg("-device")
                .arg(format!("virtio-net-pci,netdev=n,mac=52:54:00:00:00:0{host},romfile="));
        }
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().expect("the output was asked for");
        let prefix = if job.hosts == 1 { String::new() } else { format!("[{host}] ") };
        let output = Some(thread::spawn(move || pass_on(output, &prefix)));
        Ok(Self { process, output })
    }

    fn wait(&mut self) -> io::Result<()> {
        self.process.wait()?;
        if let Some(output) = self.output.take() {
            // The thread ends with the output; it has nothing to tell.
            let _ = output.join();
        }
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // `timeout` passes the signal on to QEMU, which a kill of `timeout` would leave alone.
        let pid = self.process.id().to_string();
        if self.output.is_some() {
            let _ = Command::new("kill").args(["-TERM", &pid]).status();
            let _ = self.wait();
        }
    }
}

/// Copies the guest's output to ours, line by line.
fn pass_on(output: impl io::Read, prefix: &str) {
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let text = String::from_utf8_lossy(&line);
        println!("{prefix}{}", text.trim_end_matches(['\r', '\n']));
        line.clear();
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), GuestError> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        let word = "it's $HOME; \"x\"\n*";
        let output = Command::new("sh").arg("-c").arg(format!("printf %s {}", quote(word))).output();
        assert_eq!(output.expect("sh runs").stdout, word.as_bytes());
    }

    #[test]
    fn the_script_runs_the_command_in_its_folder() {
        let mut job = Job::new(vec!["echo".into(), "a b".into()]).expect("a current folder");
        job.folder = PathBuf::from("/some where");
        assert!(script(&job).contains("cd '/some where' && 'echo' 'a b'\n"));
    }
}
