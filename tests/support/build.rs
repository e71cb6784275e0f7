//! Owns what is generated for tests: byway's code for all sources, tonic's for the echo service.
//!
//! Never runs protoc.

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let out_dir = env::var("OUT_DIR")?;
    let out_dir = Path::new(&out_dir);
    byway_build::configure()
        .file_descriptor_set_path(out_dir.join("test.v1.bin"))
        .compile_protos(&["proto/test/v1/echo.proto"], &["proto"])?;

    let odd = out_dir.join("odd");
    fs::create_dir_all(&odd)?;
    byway_build::configure()
        .out_dir(odd)
        .include_file("odd.rs")
        .file_descriptor_set("proto/odd/editions.binpb")
        .compile_protos(
            &["proto/odd/v1/odd.proto", "proto/odd/shadow.proto", "proto/odd/nameless.proto"],
            &["proto"],
        )?;

    // The same again with every option that changes what an implementation looks like.
    let varied = out_dir.join("varied");
    fs::create_dir_all(&varied)?;
    byway_build::configure()
        .out_dir(varied)
        .include_file("varied.rs")
        .build_transport(false)
        .emit_package(false)
        .use_arc_self(true)
        .generate_default_stubs(true)
        .compile_well_known_types(true)
        .vec_bytes(".")
        .btree_map(".")
        .compile_protos(&["proto/test/v1/echo.proto", "proto/odd/v1/odd.proto"], &["proto"])?;

    let stock = out_dir.join("stock");
    fs::create_dir_all(&stock)?;
    tonic_prost_build::configure()
        .out_dir(stock)
        .bytes(".")
        .build_transport(false)
        .compile_fds(protox::compile(["test/v1/echo.proto"], ["proto"])?)?;

    let shared = out_dir.join("shared");
    fs::create_dir_all(&shared)?;
    tonic_prost_build::configure()
        .out_dir(shared)
        .extern_path(".test.v1.EchoRequest", "crate::test::v1::EchoRequest")
        .extern_path(".test.v1.EchoReply", "crate::test::v1::EchoReply")
        .build_transport(false)
        .compile_fds(protox::compile(["test/v1/echo.proto"], ["proto"])?)?;
    Ok(())
}
