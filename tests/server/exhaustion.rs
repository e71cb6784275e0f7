//! A server whose process has no descriptors left.

use std::process::Command;

use tokio::net::TcpStream;

use crate::harness::{Running, served, soon, story};

/// Descriptors that the process of the story may have.
const DESCRIPTORS: u64 = 64;

/// The story needs a process of its own, since the limit is that of a process.
#[test]
fn accepting_survives_running_out_of_descriptors() {
    let this = std::env::current_exe().expect("a test has a binary");
    let story = "exhaustion::runs_out_of_descriptors";
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -n {DESCRIPTORS} && exec \"$0\" --exact {story} --ignored --nocapture"))
        .arg(this)
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "needs a process with few descriptors; the test above runs it"]
fn runs_out_of_descriptors() {
    story(async {
        let server = Running::start().await;
        let client = server.client().await;
        served(&client).await;
        // Files take every descriptor but one: the peer's end of a connection. None is left for the server's end.
        let mut files = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            files.push(file);
        }
        assert!(!files.is_empty(), "the limit of descriptors is too small to begin with");
        files.pop();
        let waiting = soon(TcpStream::connect(server.text())).await.expect("the system completes it");
        assert!(std::fs::File::open("/dev/null").is_err(), "there are none left");
        // The connection that is there is served, while accepting fails again and again.
        for _ in 0..100 {
            served(&client).await;
        }
        assert!(std::fs::File::open("/dev/null").is_err(), "still none left");
        drop(files);
        drop(waiting);
        served(&server.client().await).await;
        served(&client).await;
        server.stop().await;
    });
}
