//! The Python environment of the third-party clients, and grpcurl.
//!
//! Owns a folder below cargo's target folder. Invariant: an environment with a stamp is complete, and of the versions and
//! hashes that the stamp repeats; any other is made anew. Never uses a package whose hash is not listed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{ClientsError, FOLDER, limited};

/// Versions and hashes of all packages.
const REQUIREMENTS: &str = include_str!("../../../tests/third_party/requirements.txt");

/// The minor versions of Python 3 that `requirements.txt` lists packages for.
const MINOR_VERSIONS: std::ops::RangeInclusive<u32> = 10..=14;

/// For one step, most of which is downloads.
const STEP_LIMIT_S: u32 = 300;

/// With what `grpcurl_program.py` exits when it could not download.
const UNREACHABLE: i32 = 3;

/// The interpreter to make an environment of.
pub(super) struct Python {
    version: String,
}

/// Python with the clients' packages, and grpcurl.
pub(super) struct Environment {
    python: PathBuf,
    grpcurl: PathBuf,
}

impl Environment {
    /// The start of a command that is ended after that time.
    pub(super) fn python(&self, limit_s: u32) -> Command {
        let mut command = limited(limit_s, &self.python);
        // Settings of other environments, and caches between our sources.
        command.env_remove("PYTHONPATH").env_remove("PYTHONHOME").env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    pub(super) fn grpcurl(&self) -> &Path {
        &self.grpcurl
    }
}

/// Fails when this machine has no Python that will do.
pub(super) fn find_python() -> Result<Python, ClientsError> {
    let missing = |text: &str| Err(ClientsError::Missing(text.to_owned()));
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return missing("their packages are listed for x86-64 Linux only");
    }
    let script = "import sys; print('%d.%d.%d' % sys.version_info[:3]); import ensurepip, venv";
    let Ok(output) = Command::new("python3").args(["-c", script]).output() else {
        return missing("python3 is not installed (Debian: python3, python3-venv)");
    };
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !is_listed(&version) {
        let (first, last) = (MINOR_VERSIONS.start(), MINOR_VERSIONS.end());
        return missing(&format!(
            "python3 is version {version:?}, and their packages are listed for 3.{first} to 3.{last}"
        ));
    }
    if !output.status.success() {
        return missing("python3 cannot make virtual environments (Debian: python3-venv)");
    }
    Ok(Python { version })
}

fn is_listed(version: &str) -> bool {
    let minor = version.strip_prefix("3.").and_then(|rest| rest.split('.').next());
    minor.and_then(|minor| minor.parse().ok()).is_some_and(|minor| MINOR_VERSIONS.contains(&minor))
}

/// The environment in that folder, made if it is not there.
pub(super) fn prepare(python: &Python, folder: &Path) -> Result<Environment, ClientsError> {
    let root = folder.join("venv");
    let environment = Environment { python: root.join("bin/python"), grpcurl: folder.join("grpcurl") };
    let stamp = folder.join("venv.stamp");
    let wanted = format!("# Python {}\n{REQUIREMENTS}", python.version);
    if fs::read_to_string(&stamp).ok().as_deref() != Some(&wanted) || !environment.python.exists() {
        eprintln!("xtask: making the Python environment in {}", root.display());
        fs::create_dir_all(folder)?;
        if stamp.exists() {
            fs::remove_file(&stamp)?;
        }
        install(&environment, &root)?;
        fs::write(&stamp, wanted)?;
    }
    // Its sum is checked every time.
    let fetch = environment
        .python(STEP_LIMIT_S)
        .arg(Path::new(FOLDER).join("grpcurl_program.py"))
        .arg(&environment.grpcurl)
        .output()?;
    match fetch.status.code() {
        Some(0) => Ok(environment),
        Some(UNREACHABLE) => Err(ClientsError::Missing(last_words(&fetch))),
        _ => Err(ClientsError::Broken(format!("grpcurl: {}", last_words(&fetch)))),
    }
}

fn install(environment: &Environment, root: &Path) -> Result<(), ClientsError> {
    let made = limited(STEP_LIMIT_S, "python3").args(["-m", "venv", "--clear"]).arg(root).output()?;
    if !made.status.success() {
        let text = format!("python3 -m venv failed (Debian: python3-venv): {}", last_words(&made));
        return Err(ClientsError::Missing(text));
    }
    let requirements = Path::new(FOLDER).join("requirements.txt");
    let installed = environment
        .python(STEP_LIMIT_S)
        .args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"])
        .args(["--require-hashes", "--only-binary=:all:", "--retries=2", "--timeout=15", "--requirement"])
        .arg(&requirements)
        .output()?;
    if installed.status.success() {
        return Ok(());
    }
    let (name, why) = (requirements.display(), last_words(&installed));
    // Other packages than those that are listed are no state that a machine may be in.
    if why.contains("DO NOT MATCH THE HASHES") {
        return Err(ClientsError::Broken(format!(
            "pip was given other packages than those in {name}: {why}"
        )));
    }
    Err(ClientsError::Missing(format!("pip could not install {name} (is there a network?): {why}")))
}

/// The end of what a program said when it failed.
fn last_words(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines.len() {
        0 => format!("it ended with {}", output.status),
        count => lines[count.saturating_sub(8)..].join("\n    ").trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_python_are_compared_as_numbers() {
        for version in ["3.10.0", "3.11.7", "3.14.2"] {
            assert!(is_listed(version), "{version}");
        }
        for version in ["3.9.18", "3.15.0", "2.7.18", "4.10.0", ""] {
            assert!(!is_listed(version), "{version}");
        }
    }
}
