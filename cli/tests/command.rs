//! The command itself: its usage, its exit status, and that its two forms agree.

use std::process::{Command, Output};

fn byway(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_byway")).args(arguments).output().expect("it starts")
}

#[test]
fn bad_usage_is_told_from_a_machine_without_rdma() {
    for arguments in
        [&[][..], &["doctor", "--xml"], &["doctor", "host-without-port"], &["doctor", ":1"], &["x"]]
    {
        let output = byway(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn status_text_and_json_agree_on_this_machine() {
    let (text, json) = (byway(&["doctor"]), byway(&["doctor", "--json"]));
    let json_status = json.status.code();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("valid JSON");
    let expected = if json["summary"]["usable"] == true { 0 } else { 1 };
    assert_eq!((text.status.code(), json_status), (Some(expected), Some(expected)));
    let text = String::from_utf8(text.stdout).expect("text");
    let conclusion = json["summary"]["text"].as_str().expect("a sentence");
    assert!(text.trim_end().ends_with(conclusion), "{text}");
    assert!(!text.contains('\x1b'), "a pipe has no colours");
}

/// Whether this machine has a device or not, the server does not use it.
#[test]
fn the_path_to_a_peer_is_taken_and_its_reason_is_told() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (address, serving) = runtime.block_on(async {
        let server = byway::Server::builder().rdma(byway::Rdma::off("its operator wants none"));
        let server = server.bind("127.0.0.1:0").await.expect("a free port");
        (server.listening().to_string(), tokio::spawn(server.serve()))
    });
    let output = byway(&["doctor", &address]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = text.lines().find(|line| line.contains("peer queue pair")).expect("a line about the path");
    let reasons = [
        "calls go by tcp: this side does not use RDMA: ",
        "calls go by tcp: the server does not use RDMA: its operator",
    ];
    assert!(line.starts_with("fail") && reasons.iter().any(|reason| line.contains(reason)), "{line}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_byway"));
    let command = command.args(["doctor", "--json", &address]).env("BYWAY_TRANSPORT", "tcp");
    let json = command.output().expect("it starts");
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("valid JSON");
    let checks = json["checks"].as_array().expect("an array");
    let joined = checks.iter().find(|check| check["check"] == "peer queue pair").expect("the same line");
    assert_eq!(joined["evidence"], "calls go by tcp: BYWAY_TRANSPORT asks for tcp");
    serving.abort();
}
