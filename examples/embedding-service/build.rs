//! Generates both services, and their descriptors for reflection.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = PathBuf::from(std::env::var("OUT_DIR")?).join("embedding_descriptor.bin");
    byway_build::configure().file_descriptor_set_path(descriptors).compile_protos(
        &["proto/tei/v1/tei.proto", "proto/byway/embedding/v1/embedding.proto"],
        &["proto"],
    )?;
    Ok(())
}
