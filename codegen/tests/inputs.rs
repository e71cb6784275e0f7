//! Owns the proof that every way in leads to the same code, and that the ways out which are not
//! Rust, the descriptor set and what Cargo is told, have what they should.

mod common;

use std::{env, fs, path::Path, process::Command, time::SystemTime};

use byway_build::configure;
use common::Project;
use prost_types::FileDescriptorSet;
use protox::prost_reflect::{DescriptorPool, Value};

const MAIN: &str = r#"
syntax = "proto3";
package main;
import "lib/lib.proto";
import "google/protobuf/empty.proto";

// Commented.
service Main {
  rpc Call(lib.Message) returns (google.protobuf.Empty) {
    option (lib.note) = "noted";
  }
}
"#;

const LIB: &str = r#"
syntax = "proto3";
package lib;
import "google/protobuf/descriptor.proto";

extend google.protobuf.MethodOptions {
  string note = 50001;
}

message Message {
  bytes payload = 1;
}
"#;

fn project() -> Project {
    Project::new(&[("main.proto", MAIN), ("lib/lib.proto", LIB)])
}

#[test]
fn sources_a_decoded_set_and_a_descriptor_file_give_the_same() {
    let project = project();
    let set_path = project.path("set.binpb");
    let builder = configure().file_descriptor_set_path(&set_path);
    let from_sources = project.compile(builder, "main.proto").expect("valid sources");
    assert!(from_sources["main.rs"].contains("/// Commented."));

    let empty_out_dir = || {
        fs::remove_dir_all(project.out_dir()).expect("the old code");
        fs::create_dir(project.out_dir()).expect("a directory for new code");
    };
    empty_out_dir();
    let set = protox::compile([project.path("main.proto")], [project.path("")]).expect("valid");
    configure().out_dir(project.out_dir()).compile_fds(set).expect("a complete set");
    assert_eq!(common::read_all(&project.out_dir()), from_sources);

    empty_out_dir();
    let builder = configure().out_dir(project.out_dir()).file_descriptor_set(&set_path);
    builder.compile().expect("a complete set");
    assert_eq!(common::read_all(&project.out_dir()), from_sources);
}

#[test]
fn the_descriptor_set_has_imports_comments_and_custom_options() {
    let project = project();
    let path = project.path("set.binpb");
    let builder = configure().file_descriptor_set_path(&path);
    project.compile(builder, "main.proto").expect("valid sources");

    let encoded = fs::read(path).expect("a descriptor set");
    let pool = DescriptorPool::decode(&*encoded).expect("a complete set");
    let names: Vec<_> = pool.files().map(|file| file.name().to_owned()).collect();
    let expected =
        ["google/protobuf/descriptor.proto", "lib/lib.proto", "google/protobuf/empty.proto", "main.proto"];
    assert_eq!(names, expected);
    let service = pool.get_service_by_name("main.Main").expect("the service");
    let method = service.methods().next().expect("its method");
    let note = pool.get_extension_by_name("lib.note").expect("the option");
    let value = method.options().get_extension(&note).into_owned();
    assert_eq!(value, Value::String("noted".to_owned()));
    let file = service.parent_file();
    let locations = file.file_descriptor_proto().source_code_info.as_ref();
    let comments = locations.into_iter().flat_map(|info| &info.location);
    assert!(
        comments
            .filter_map(|location| location.leading_comments.as_deref())
            .any(|comment| comment == " Commented.\n")
    );
}

#[test]
fn descriptor_files_and_sources_are_compiled_together() {
    let project = project();
    let set_path = project.path("set.binpb");
    let builder = configure().file_descriptor_set_path(&set_path);
    project.compile(builder, "lib/lib.proto").expect("valid sources");

    let both_path = project.path("both.binpb");
    let builder = configure()
        .file_descriptor_set(common::editions())
        .file_descriptor_set(set_path)
        .file_descriptor_set_path(&both_path);
    let files = project.compile(builder, "main.proto").expect("valid sources");
    let names: Vec<_> = files.keys().collect();
    assert_eq!(names, ["lib.rs", "main.rs", "odd.editions.rs"]);

    let encoded = fs::read(both_path).expect("a descriptor set");
    let both: FileDescriptorSet = protox::prost::Message::decode(&*encoded).expect("a set");
    let lib_count = both.file.iter().filter(|file| file.name() == "lib/lib.proto").count();
    assert_eq!(lib_count, 1, "a file that is in two inputs is there once");
    let editions = fs::read(common::editions()).expect("what protoc wrote");
    assert!(encoded.windows(editions.len()).any(|part| part == editions), "byte for byte");
}

#[test]
fn compile_protos_alone_takes_the_directory_of_the_file() {
    // OUT_DIR is the environment's, so this is done in a process of its own.
    let project = project();
    project.write("one.proto", "syntax = \"proto3\"; package one; message One {}");
    run_build(&project, "one");
    assert!(common::read_all(&project.out_dir()).contains_key("one.rs"));
}

#[test]
fn out_dir_is_needed() {
    let project = project();
    let output = run_build(&project, "no-out-dir");
    assert!(output.contains("OUT_DIR is not set: "), "{output}");
}

#[test]
fn an_include_file_in_out_dir_can_be_included_from_anywhere() {
    let project = project();
    run_build(&project, "include");
    let files = common::read_all(&project.out_dir());
    let expected = "include!(concat!(env!(\"OUT_DIR\"), \"/main.rs\"));";
    assert!(files["all.rs"].contains(expected), "{}", files["all.rs"]);
}

#[test]
fn cargo_is_told_of_every_file_that_is_read() {
    let project = project();
    fs::copy(common::editions(), project.path("editions.binpb")).expect("a descriptor file");
    let output = run_build(&project, "rerun");
    let mut told: Vec<_> = (output.lines())
        .filter_map(|line| line.strip_prefix("cargo:rerun-if-changed="))
        .map(|path| Path::new(path).strip_prefix(project.path("")).expect("a path in the project"))
        .collect();
    told.sort();
    let expected = ["editions.binpb", "lib/lib.proto", "main.proto"];
    assert_eq!(told, expected.map(Path::new), "what is built in is not a file");
}

#[test]
fn nobody_is_told_when_cargo_is_not_running_a_build_script() {
    let project = project();
    assert!(!run_build(&project, "not-cargo").contains("cargo:"));
    assert!(!run_build(&project, "rerun-off").contains("cargo:"));
}

/// Runs `build_script`, below, as a build script would be, and gives what it prints.
fn run_build(project: &Project, what: &str) -> String {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command
        .args(["--exact", "build_script", "--nocapture", "--ignored"])
        .env("BYWAY_TEST_BUILD", what)
        .env("BYWAY_TEST_PROJECT", project.path(""))
        .env("CARGO_MANIFEST_DIR", project.path(""))
        .env("HOST", "here")
        .env("OUT_DIR", project.out_dir());
    match what {
        "no-out-dir" => command.env_remove("OUT_DIR"),
        "not-cargo" => command.env_remove("HOST"),
        _ => &mut command,
    };
    let output = command.output().expect("a child process");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
#[ignore = "run by other tests, as a child process with an environment"]
fn build_script() {
    let Some(project) = env::var_os("BYWAY_TEST_PROJECT") else {
        return;
    };
    let project = Path::new(&project);
    let protos = [project.join("main.proto")];
    let includes = [project.to_owned()];
    println!();
    let builder = configure();
    let result = match env::var("BYWAY_TEST_BUILD").expect("what to do").as_str() {
        "one" => byway_build::compile_protos(project.join("one.proto")),
        "include" => builder.include_file("all.rs").compile_protos(&protos, &includes),
        "rerun" => {
            builder.file_descriptor_set(project.join("editions.binpb")).compile_protos(&protos, &includes)
        }
        "rerun-off" => builder.emit_rerun_if_changed(false).compile_protos(&protos, &includes),
        _ => builder.compile_protos(&protos, &includes),
    };
    if let Err(error) = result {
        println!("{error}");
    }
}

#[test]
fn a_file_that_stays_the_same_is_not_touched() {
    let project = project();
    project.compile(configure(), "main.proto").expect("valid sources");
    let path = project.out_dir().join("main.rs");
    let file = fs::File::options().write(true).open(&path).expect("generated code");
    file.set_modified(SystemTime::UNIX_EPOCH).expect("an old file");
    project.compile(configure(), "main.proto").expect("valid sources");
    let modified = fs::metadata(&path).and_then(|data| data.modified()).expect("a time");
    assert_eq!(modified, SystemTime::UNIX_EPOCH);

    project.write("main.proto", MAIN.replace("Commented", "Changed"));
    project.compile(configure(), "main.proto").expect("valid sources");
    let modified = fs::metadata(&path).and_then(|data| data.modified()).expect("a time");
    assert_ne!(modified, SystemTime::UNIX_EPOCH);
}
