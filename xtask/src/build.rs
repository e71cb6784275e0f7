//! Builds executables of the workspace's packages.
//!
//! Owns the reading of cargo's messages. Never guesses where cargo puts an executable.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs a cargo command that builds one executable, and returns the executable's path.
pub(crate) fn executable(command: &mut Command) -> io::Result<PathBuf> {
    command.args(["--locked", "--message-format=json"]);
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    match (output.status.success(), named(&text)) {
        (true, Some(path)) => PathBuf::from(path).canonicalize(),
        _ => Err(io::Error::other(format!("{command:?} built no executable"))),
    }
}

/// The last executable that cargo's messages name.
fn named(messages: &str) -> Option<&str> {
    let key = "\"executable\":\"";
    let start = messages.rfind(key)? + key.len();
    messages[start..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_in_the_messages() {
        let messages = "{\"executable\":null}\n{\"x\":1,\"executable\":\"/a b/c\",\"fresh\":true}\n{\"executable\":null}\n";
        assert_eq!(named(messages), Some("/a b/c"));
        assert_eq!(named("{\"executable\":null}"), None);
    }
}
