//! Owns what a person reads in a build log when something is wrong.

mod common;

use std::{fs, io};

use byway_build::{Error, configure};
use common::Project;

/// What is printed for `proto`, with the directory of the test cut out of it.
fn message(project: &Project, proto: &str) -> String {
    let error = (project.compile(configure(), proto)).expect_err("the source is broken");
    shown(project, &error)
}

fn shown(project: &Project, error: &Error) -> String {
    assert_eq!(error.to_string(), format!("{error:?}"), "unwrap() prints what ? prints");
    let directory = format!("{}/", project.path("").display());
    error.to_string().replace(&directory.replace("//", "/"), "")
}

#[test]
fn a_syntax_error_is_shown_where_it_is() {
    let project =
        Project::new(&[("a/broken.proto", "syntax = \"proto3\";\n\nmessage M {\n\tstring text 1;\n}\n")]);
    assert_eq!(
        message(&project, "a/broken.proto"),
        "a/broken.proto:4:14: expected '=', but found '1'\n  \
         | \tstring text 1;\n  \
         | \t            ^"
    );
}

#[test]
fn every_problem_of_a_file_is_shown() {
    let project = Project::new(&[(
        "broken.proto",
        "syntax = \"proto3\";\nmessage M {\n  One one = 1;\n  Two two = 2;\n}\n",
    )]);
    let message = message(&project, "broken.proto");
    assert!(message.starts_with("broken.proto:3:3: name 'One' is not defined"), "{message}");
    assert!(message.contains("\nbroken.proto:4:3: name 'Two' is not defined"), "{message}");
}

#[test]
fn a_name_that_means_nothing_is_shown_where_it_is() {
    let project = Project::new(&[
        ("main.proto", "syntax = \"proto3\";\nimport \"lib/types.proto\";\n"),
        ("lib/types.proto", "syntax = \"proto3\";\npackage lib;\nmessage M {\n  Nothing field = 1;\n}\n"),
    ]);
    let message = message(&project, "main.proto");
    let expected = "lib/types.proto:4:3: name 'Nothing' is not defined\n  \
                    |   Nothing field = 1;\n  \
                    |   ^";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn of_two_definitions_the_second_is_shown() {
    let project =
        Project::new(&[("twice.proto", "syntax = \"proto3\";\nmessage M {}\nmessage N {}\nmessage M {}\n")]);
    let message = message(&project, "twice.proto");
    assert!(message.starts_with("twice.proto:4:9: name 'M' is defined twice"), "{message}");
}

#[test]
fn a_missing_import_is_shown_where_it_is_imported() {
    let project = Project::new(&[("main.proto", "syntax = \"proto3\";\n\nimport \"no/such.proto\";\n")]);
    let message = message(&project, "main.proto");
    assert!(message.starts_with("main.proto:3:1: import 'no/such.proto' not found\n"), "{message}");
}

#[test]
fn an_import_cycle_is_named() {
    let project = Project::new(&[
        ("a.proto", "syntax = \"proto3\";\nimport \"b.proto\";\n"),
        ("b.proto", "syntax = \"proto3\";\nimport \"a.proto\";\n"),
    ]);
    assert_eq!(message(&project, "a.proto"), "a.proto: import cycle detected: a.proto -> b.proto -> a.proto");
}

#[test]
fn a_missing_file_is_not_said_to_be_outside() {
    let project = Project::new(&[]);
    assert_eq!(message(&project, "missing.proto"), "missing.proto: no such file");
}

#[test]
fn a_file_outside_the_include_directories_is_said_to_be() {
    let project = Project::new(&[("outside.proto", "syntax = \"proto3\";"), ("inside/x", "")]);
    let error = configure()
        .out_dir(project.out_dir())
        .compile_protos(&[project.path("outside.proto")], &[project.path("inside")])
        .expect_err("imports could not name the file");
    assert_eq!(shown(&project, &error), "outside.proto: not inside an include directory (inside)");
}

#[test]
fn an_edition_is_refused_with_the_way_out() {
    let project = Project::new(&[("new.proto", "edition = \"2023\";\nmessage M {}\n")]);
    let message = message(&project, "new.proto");
    assert!(message.starts_with("new.proto:1:1: "), "{message}");
    assert!(message.contains("help: protobuf editions are not read from source"), "{message}");
    assert!(message.contains("`file_descriptor_set`"), "{message}");
}

#[test]
fn problems_are_also_there_for_programs() {
    let project = Project::new(&[("broken.proto", "syntax = \"proto3\";\nmassage M {}\n")]);
    let error = project.compile(configure(), "broken.proto").expect_err("a broken source");
    let Error::Proto(problems) = error else {
        panic!("not a problem of the source: {error}");
    };
    let problem = problems.first().expect("at least one problem");
    assert_eq!(problem.file.as_deref(), Some(&*project.path("broken.proto")));
    assert_eq!(problem.position, Some((2, 1)));
    assert_eq!(problem.line.as_deref(), Some("massage M {}"));
}

#[test]
fn nothing_is_written_when_a_source_is_broken() {
    let project = Project::new(&[("broken.proto", "message {")]);
    message(&project, "broken.proto");
    assert!(common::read_all(&project.out_dir()).is_empty());
}

#[test]
fn an_attribute_that_is_none_is_named() {
    let project = Project::new(&[("m.proto", "syntax = \"proto3\"; message M {}")]);
    for builder in
        [configure().type_attribute(".M", "#[derive("), configure().client_mod_attribute(".M", "#[derive(")]
    {
        let error = project.compile(builder, "m.proto").expect_err("a broken attribute");
        let message = shown(&project, &error);
        let expected = "`#[derive(`, given for `.M`, is not an attribute: ";
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn a_rust_path_that_is_none_is_named() {
    let project =
        Project::new(&[("m.proto", "syntax = \"proto3\"; package p; message M { N n = 1; } message N {}")]);
    let builder = configure().extern_path(".p.N", "not a path");
    let error = project.compile(builder, "m.proto").expect_err("a broken path");
    let message = shown(&project, &error);
    assert!(message.starts_with("cannot generate code for package `p`: "), "{message}");

    let builder = configure().extern_path("p.N", "::n::N");
    let error = project.compile(builder, "m.proto").expect_err("a relative protobuf path");
    assert!(error.to_string().contains("fully qualified"), "{error}");
}

#[test]
fn a_descriptor_file_must_be_one_and_complete() {
    let project = Project::new(&[("text.binpb", "this is text")]);
    let compile = |name: &str| {
        let builder = configure().out_dir(project.out_dir());
        let error = builder.file_descriptor_set(project.path(name)).compile();
        shown(&project, &error.expect_err("not a usable descriptor file"))
    };
    let message = compile("text.binpb");
    assert!(message.starts_with("text.binpb is not a FileDescriptorSet: "), "{message}");
    let message = compile("missing.binpb");
    assert!(message.starts_with("cannot read missing.binpb: "), "{message}");

    let file = prost_types::FileDescriptorProto {
        name: Some("a.proto".to_owned()),
        dependency: vec!["b.proto".to_owned()],
        ..Default::default()
    };
    let error = configure()
        .out_dir(project.out_dir())
        .compile_fds(prost_types::FileDescriptorSet { file: vec![file] })
        .expect_err("an import is missing");
    assert_eq!(
        error.to_string(),
        "a.proto imports b.proto, which the descriptor set does not contain: \
         make it with `protoc --include_imports`"
    );
}

#[test]
fn a_decoded_descriptor_set_cannot_hold_editions() {
    let file = prost_types::FileDescriptorProto {
        name: Some("a.proto".to_owned()),
        syntax: Some("editions".to_owned()),
        ..Default::default()
    };
    let error =
        byway_build::compile_fds(prost_types::FileDescriptorSet { file: vec![file] }).expect_err("editions");
    assert!(error.to_string().contains("give the file that protoc wrote"), "{error}");
}

#[test]
fn errors_pass_through_main_functions_that_return_io_results() {
    let project = Project::new(&[]);
    let build = || -> io::Result<()> {
        let protos = [project.path("missing.proto")];
        Ok(configure().compile_protos(&protos, &[project.path("")])?)
    };
    let error = build().expect_err("a missing file");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().ends_with("missing.proto: no such file"), "{error}");
}

#[test]
fn a_directory_that_cannot_be_written_to_is_named() {
    let project = Project::new(&[("m.proto", "syntax = \"proto3\"; message M {}")]);
    fs::remove_dir(project.out_dir()).expect("the directory for generated code");
    let builder = configure().out_dir(project.out_dir());
    let error = builder
        .compile_protos(&[project.path("m.proto")], &[project.path("")])
        .expect_err("there is nowhere to write");
    let message = shown(&project, &error);
    assert!(message.starts_with("cannot write out/_.rs: "), "{message}");
}
