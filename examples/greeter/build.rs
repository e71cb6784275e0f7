//! Generates the greeter's code.

fn main() -> Result<(), byway_build::Error> {
    byway_build::configure().compile_protos(&["proto/greeter/v1/greeter.proto"], &["proto"])
}
