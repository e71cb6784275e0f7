//! Owns the descriptors that code is generated from, whatever they came from: sources parsed by
//! protox, a descriptor file written by protoc, or a set handed over by the caller.
//!
//! Invariant: each file is there once, with its imports, and its encoded form is kept byte for
//! byte, so that custom options and source locations reach whoever reads the set at run time.
//!
//! Never runs protoc.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use prost::{Message, bytes::Bytes};
use prost_types::{FileDescriptorProto, FileDescriptorSet};

use crate::{
    editions,
    error::{self, Error, Problem},
};

/// A `FileDescriptorSet` whose files stay encoded: prost's own type drops what it does not know.
#[derive(Clone, PartialEq, Message)]
struct EncodedSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    file: Vec<Bytes>,
}

/// Files and their imports.
#[derive(Default)]
pub(crate) struct Descriptors {
    files: Vec<FileDescriptorProto>,
    encoded: EncodedSet,
    names: HashSet<String>,
    /// Every file that was read from disk.
    sources: Vec<PathBuf>,
}

impl Descriptors {
    /// Parses `protos` and what they import from `includes`.
    pub(crate) fn add_protos(&mut self, protos: &[PathBuf], includes: &[PathBuf]) -> Result<(), Error> {
        if protos.is_empty() {
            return Ok(());
        }
        let locate = |name: &str| locate(name, includes);
        let failed = |error: protox::Error| error::from_protox(&error, locate);
        let mut compiler = protox::Compiler::new(includes).map_err(failed)?;
        compiler.include_imports(true).include_source_info(true);
        for proto in protos {
            compiler.open_file(proto).map_err(|error| {
                if error.is_file_not_found() && error.file().is_none() {
                    unreachable_proto(proto, includes)
                } else {
                    failed(error)
                }
            })?;
        }
        for file in compiler.files() {
            // What protobuf itself defines is built in and has no path.
            self.sources.extend(file.path().map(Path::to_owned));
        }
        self.sources.sort();
        self.add_encoded_set(compiler.encode_file_descriptor_set().into(), "parsed sources")
    }

    /// Reads a `FileDescriptorSet` from `path`.
    pub(crate) fn add_descriptor_file(&mut self, path: &Path) -> Result<(), Error> {
        let bytes =
            fs::read(path).map_err(|source| Error::Io { action: "read", path: path.to_owned(), source })?;
        self.sources.push(path.to_owned());
        self.add_encoded_set(bytes.into(), &path.display().to_string())
    }

    /// Adds a decoded set.
    pub(crate) fn add_set(&mut self, set: FileDescriptorSet) -> Result<(), Error> {
        for file in &set.file {
            if file.syntax() == editions::SYNTAX {
                let message = format!(
                    "{} uses an edition, and a decoded descriptor set has lost what that means: \
                     give the file that protoc wrote to `file_descriptor_set` instead",
                    file.name()
                );
                return Err(Error::Descriptors { message });
            }
        }
        self.add_encoded_set(set.encode_to_vec().into(), "descriptor set")
    }

    fn add_encoded_set(&mut self, bytes: Bytes, origin: &str) -> Result<(), Error> {
        let invalid = |error: prost::DecodeError| Error::Descriptors {
            message: format!("{origin} is not a FileDescriptorSet: {error}"),
        };
        for encoded in EncodedSet::decode(bytes).map_err(invalid)?.file {
            let mut file = FileDescriptorProto::decode(encoded.clone()).map_err(invalid)?;
            editions::lower(&mut file, &encoded).map_err(invalid)?;
            if self.names.insert(file.name().to_owned()) {
                self.files.push(file);
                self.encoded.file.push(encoded);
            }
        }
        Ok(())
    }

    /// Checks that every import is there. prost panics without the messages that fields refer to.
    pub(crate) fn check_imports(&self) -> Result<(), Error> {
        for file in &self.files {
            let missing = |import: &&String| !self.names.contains(*import);
            if let Some(import) = file.dependency.iter().find(missing) {
                let message = format!(
                    "{} imports {import}, which the descriptor set does not contain: \
                     make it with `protoc --include_imports`",
                    file.name()
                );
                return Err(Error::Descriptors { message });
            }
        }
        Ok(())
    }

    /// The files, imports before those that import them.
    pub(crate) fn files(&self) -> &[FileDescriptorProto] {
        &self.files
    }

    /// Every file that was read from disk.
    pub(crate) fn sources(&self) -> &[PathBuf] {
        &self.sources
    }

    /// An encoded `FileDescriptorSet` of all files.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.encoded.encode_to_vec()
    }
}

/// Where the file is that protobuf sources import as `name`.
fn locate(name: &str, includes: &[PathBuf]) -> PathBuf {
    (includes.iter().map(|include| include.join(name)))
        .find(|path| path.is_file())
        .unwrap_or_else(|| name.into())
}

/// Tells a file that is missing from one that imports could not name.
fn unreachable_proto(proto: &Path, includes: &[PathBuf]) -> Error {
    let message = if proto.is_file() {
        let includes: Vec<_> = includes.iter().map(|p| p.display().to_string()).collect();
        format!("not inside an include directory ({})", includes.join(", "))
    } else {
        "no such file".to_owned()
    };
    Error::Proto(vec![Problem::without_position(Some(proto.to_owned()), message)])
}
