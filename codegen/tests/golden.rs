//! Owns the comparison of generated code with the files in `tests/golden`, byte for byte.
//!
//! After a change to the generator that is meant, write them anew, and read the difference:
//! `BYWAY_BLESS=1 cargo test -p byway-build --test golden`

mod common;

use std::{env, fs, path::Path};

#[test]
fn generated_code_is_what_it_was() {
    let project = common::Project::new(&[]);
    let (protos, includes) = common::test_protos();
    byway_build::configure()
        .out_dir(project.out_dir())
        .include_file("include.rs")
        .file_descriptor_set(common::editions())
        .compile_protos(&protos, &[includes])
        .expect("the test protos are valid");
    let generated = common::read_all(&project.out_dir());

    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    if env::var_os("BYWAY_BLESS").is_some() {
        fs::remove_dir_all(&golden).expect("the old golden files");
        fs::create_dir(&golden).expect("a directory for golden files");
        for (name, text) in &generated {
            fs::write(golden.join(name), text).expect("a golden file");
        }
    }

    let golden = common::read_all(&golden);
    let names =
        |files: &std::collections::BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&generated), names(&golden));
    for (name, text) in &generated {
        let first_difference =
            (text.lines().zip(golden[name].lines()).enumerate()).find(|(_, (new, old))| new != old);
        if let Some((index, (new, old))) = first_difference {
            panic!("{name}:{}: generated `{new}`, golden `{old}`", index + 1);
        }
        assert_eq!(text.len(), golden[name].len(), "{name} has another length");
    }
}
