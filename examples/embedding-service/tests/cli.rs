//! The program, started as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// The program, without the settings of whoever runs the tests.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embedding-service"));
    command.env_clear();
    command
}

fn run(args: &[&str]) -> Output {
    program().args(args).output().expect("it starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// What a successful run printed.
fn printed(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

/// What a failed run said.
fn said(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output.stderr));
    text(&output.stderr).to_owned()
}

/// A server, killed with this.
struct Serving {
    child: Child,
    address: String,
    metrics: String,
}

impl Serving {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let (address, metrics) = line
            .trim_end()
            .strip_prefix("listening on ")
            .and_then(|rest| rest.split_once(", metrics on http://"))
            .unwrap_or_else(|| panic!("another line: {line:?}"));
        Self { address: address.to_owned(), metrics: metrics.trim_end_matches("/metrics").to_owned(), child }
    }

    fn port(args: &[&str]) -> Self {
        let common = ["--hostname", "127.0.0.1", "--port", "0", "--prometheus-port", "0"];
        Self::start(program().arg("serve").args(common).args(args))
    }

    fn metrics(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.metrics).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        write!(stream, "{request} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_is_asked_counted_and_stopped() {
    let mut serving = Serving::port(&[]);
    let url = format!("byway://{}", serving.address);
    let answer = printed(&["embed", "--url", &url, "--json", "hello", "a text"]);
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer["model_id"], "all-MiniLM-L6-v2-int8");
    assert_eq!(answer["dimensions"], 384);
    assert!(answer["path"].as_str().is_some_and(|path| path.starts_with("tcp")), "{}", answer["path"]);
    let here: Value = serde_json::from_str(&printed(&["embed", "--json", "hello", "a text"])).expect("JSON");
    assert_eq!(here["embeddings"], answer["embeddings"], "the same model, here and there");
    assert_eq!(here["path"], Value::Null);
    let error = said(&["embed", "--url", &url, ""]);
    assert!(error.contains("`inputs` cannot be empty"), "{error}");

    let metrics = serving.metrics("GET /metrics");
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
    for line in [
        "te_request_count{method=\"single\"} 3",
        "te_request_success{method=\"single\"} 2",
        "te_request_failure{err=\"validation\"} 1",
        "te_embed_success 2",
        "te_request_inference_duration_count 2",
        "te_request_input_length_bucket{le=\"4\"} 2",
        "te_queue_size 0",
        "byway_connections{path=\"rdma\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
    assert!(serving.metrics("GET /other").starts_with("HTTP/1.1 404"));
    assert!(serving.metrics("POST /metrics").starts_with("HTTP/1.1 405"));

    let status = Command::new("kill").arg(serving.child.id().to_string()).status();
    assert!(status.expect("kill is there").success());
    assert!(serving.child.wait().expect("it ends").success(), "SIGTERM is an orderly end");
    let error = said(&["embed", "--url", &url, "hello"]);
    assert!(error.contains("could not be reached"), "{error}");
}

#[test]
fn flags_and_variables_do_what_they_say() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let mut command = program();
    command.arg("--uds-path").arg(&socket).args(["--prometheus-port", "0", "--json-output"]);
    command.env("MODEL_ID", "null:16").env("API_KEY", "secret").env("SERVED_MODEL_NAME", "mine");
    let serving = Serving::start(&mut command);
    assert_eq!(serving.address, format!("unix:{}", socket.display()));
    let answer = printed(&["embed", "--url", &serving.address, "--api-key", "secret", "hello"]);
    assert!(answer.starts_with("mine, 16 dimensions, over "), "{answer}");
    let error = said(&["embed", "--url", &serving.address, "hello"]);
    assert!(error.contains("No valid auth token"), "{error}");
}

#[test]
fn prompts_and_limits_reach_the_engine() {
    let prompted = Serving::port(&["--default-prompt", "query: ", "--max-batch-tokens", "8"]);
    let ask = |text: &str| ["embed", "--json", "--url", &prompted.address, text].map(str::to_owned);
    let line = ask("hello");
    let answer: Value = serde_json::from_str(&printed(&line.each_ref().map(String::as_str))).expect("JSON");
    let here: Value = serde_json::from_str(&printed(&["embed", "--json", "query: hello"])).expect("JSON");
    assert_eq!(answer["embeddings"], here["embeddings"]);
    let line = ask("one two three four five six");
    let error = said(&line.each_ref().map(String::as_str));
    assert!(error.contains("must have less than 8 tokens. Given: 10"), "{error}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_served() {
    let cases: [(&[&str], &str); 7] = [
        (
            &["--dtype", "float16"],
            "--dtype (or its environment variable) is set, but a model runs as its file has it",
        ),
        (&["--hf-token", "x"], "models are not downloaded"),
        (&["--model-id", "nowhere/to-be-found"], "there is no directory nowhere/to-be-found"),
        (&["--max-concurrent-requests", "0"], "--max-concurrent-requests is 0"),
        (&["--max-batch-tokens", "8", "--auto-truncate", "false"], "the model takes texts of 256 tokens"),
        (&["--default-prompt-name", "query"], "the model has no prompts"),
        (
            &[
                "--model-id",
                "null:4",
                "--hostname",
                "127.0.0.1",
                "--prometheus-port",
                "0",
                "--uds-path",
                "/nowhere/s",
            ],
            "unix:/nowhere/s cannot be listened on",
        ),
    ];
    for (args, reason) in cases {
        let error = said(args);
        assert!(error.contains(reason), "{args:?}: {error}");
    }
}

#[test]
fn a_path_that_is_not_there_is_said_so_by_the_channel() {
    let error = said(&["embed", "--url", "127.0.0.1:1", "--transport", "tcp", "hello"]);
    assert!(error.contains("127.0.0.1:1 could not be reached"), "{error}");
    let error = said(&["embed", "--url", "pigeon://127.0.0.1:1", "hello"]);
    assert!(error.contains("is not an address"), "{error}");
}

#[test]
fn the_demo_shows_what_each_path_answers_and_costs() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("demo.json");
    let out = file.to_str().expect("UTF-8");
    let json = printed(&["demo", "--json", "--out", out]);
    assert_eq!(json, std::fs::read_to_string(&file).expect("it was written"));
    let report: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&report["model_id"], &report["dimensions"]), (&"all-MiniLM-L6-v2-int8".into(), &384.into()));
    let similarity =
        |left: usize, right: usize| report["similarity"][left][right].as_f64().expect("a number");
    assert!((similarity(0, 0) - 1.0).abs() < 1e-6);
    assert_eq!(similarity(0, 1), similarity(1, 0));
    assert!(similarity(0, 1) > 0.5 && similarity(2, 3) > 0.5, "these mean nearly the same");
    assert!(similarity(0, 2) < 0.3 && similarity(1, 4) < 0.3, "these do not");

    let paths = report["paths"].as_array().expect("a list");
    let names: Vec<_> = paths.iter().map(|path| path["path"].as_str().expect("a name")).collect();
    assert_eq!(names, ["rdma", "tcp", "grpc"]);
    for path in paths {
        assert!(path["counters"].is_object(), "{path}");
        let numbers = ["p50_us", "p99_us", "per_s", "large_p50_us", "large_mb_per_s"];
        if path["available"] == true {
            assert_eq!(path["reason"], Value::Null);
            assert!(
                numbers.iter().all(|name| path[name].as_f64().is_some_and(|number| number > 0.0)),
                "{path}"
            );
            assert!(path["p50_us"].as_f64() <= path["p99_us"].as_f64(), "{path}");
        } else {
            assert!(path["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{path}");
            assert!(numbers.iter().all(|name| path[name].is_null()), "{path}");
        }
    }
    assert_eq!(paths[1]["available"], true, "TCP is everywhere");
}
