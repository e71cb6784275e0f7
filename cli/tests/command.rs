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
