//! Owns the options, and what each is when nobody sets it.
//!
//! Invariant: an option that tonic-prost-build has under the same name does the same here.
//!
//! Never generates: it collects, and the `compile_*` methods hand the whole over.

use std::path::{Path, PathBuf};

use prost_types::FileDescriptorSet;

use crate::{Error, compile, generator::Generator};

/// Options for generating code; made by [`configure`](crate::configure).
///
/// Options that take a *path* take a pattern of protobuf names: `.` is everything, `.a.b` all
/// that is in package or message `a.b`, and `Message.field` every name that ends so.
#[derive(Debug, Clone)]
pub struct Builder {
    pub(crate) build_client: bool,
    pub(crate) build_server: bool,
    pub(crate) build_transport: bool,
    pub(crate) emit_package: bool,
    pub(crate) use_arc_self: bool,
    pub(crate) generate_default_stubs: bool,
    pub(crate) compile_well_known_types: bool,
    pub(crate) emit_rerun_if_changed: bool,
    pub(crate) attributes: Vec<AttributeRule>,
    pub(crate) extern_paths: Vec<(String, String)>,
    pub(crate) boxed: Vec<String>,
    pub(crate) btree_map: Vec<String>,
    pub(crate) vec_bytes: Vec<String>,
    pub(crate) skip_debug: Vec<String>,
    pub(crate) disable_comments: Vec<String>,
    pub(crate) descriptor_files: Vec<PathBuf>,
    pub(crate) file_descriptor_set_path: Option<PathBuf>,
    pub(crate) include_file: Option<PathBuf>,
    pub(crate) out_dir: Option<PathBuf>,
}

/// What an attribute is put on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Type,
    Message,
    Enum,
    Field,
    ClientMod,
    Client,
    ServerMod,
    Server,
    Trait,
}

/// One attribute, for all of a kind that a pattern covers.
#[derive(Debug, Clone)]
pub(crate) struct AttributeRule {
    pub(crate) target: Target,
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            build_client: true,
            build_server: true,
            build_transport: true,
            emit_package: true,
            use_arc_self: false,
            generate_default_stubs: false,
            compile_well_known_types: false,
            emit_rerun_if_changed: is_build_script(),
            attributes: Vec::new(),
            extern_paths: Vec::new(),
            boxed: Vec::new(),
            btree_map: Vec::new(),
            vec_bytes: Vec::new(),
            skip_debug: Vec::new(),
            disable_comments: Vec::new(),
            descriptor_files: Vec::new(),
            file_descriptor_set_path: None,
            include_file: None,
            out_dir: None,
        }
    }
}

/// Cargo sets HOST for build scripts and for nothing else that it runs.
fn is_build_script() -> bool {
    std::env::var_os("HOST").is_some() && std::env::var_os("CARGO_MANIFEST_DIR").is_some()
}

fn strings<S: AsRef<str>>(paths: impl IntoIterator<Item = S>) -> impl Iterator<Item = String> {
    paths.into_iter().map(|path| path.as_ref().to_owned())
}

/// What is generated for services.
impl Builder {
    /// Whether to generate clients. Default: yes.
    #[must_use]
    pub fn build_client(mut self, enable: bool) -> Self {
        self.build_client = enable;
        self
    }

    /// Whether to generate servers and their traits. Default: yes.
    #[must_use]
    pub fn build_server(mut self, enable: bool) -> Self {
        self.build_server = enable;
        self
    }

    /// Whether clients have `connect`, which makes a `byway::Channel`. Default: yes.
    #[must_use]
    pub fn build_transport(mut self, enable: bool) -> Self {
        self.build_transport = enable;
        self
    }

    /// Whether the protobuf package is part of method paths: `/pkg.Service/Method` if so,
    /// `/Service/Method` if not. Both sides must agree. Default: yes.
    #[must_use]
    pub fn emit_package(mut self, enable: bool) -> Self {
        self.emit_package = enable;
        self
    }

    /// Whether the methods of server traits take `self: Arc<Self>` instead of `&self`.
    /// Default: no.
    #[must_use]
    pub fn use_arc_self(mut self, enable: bool) -> Self {
        self.use_arc_self = enable;
        self
    }

    /// Whether trait methods have a body that answers UNIMPLEMENTED. Response streams are then
    /// boxed, instead of an associated type for each. Default: no.
    #[must_use]
    pub fn generate_default_stubs(mut self, enable: bool) -> Self {
        self.generate_default_stubs = enable;
        self
    }

    /// Puts an attribute on the client modules of the services or packages that `path` covers.
    #[must_use]
    pub fn client_mod_attribute(self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.attribute(Target::ClientMod, path, attribute)
    }

    /// Puts an attribute on the client structs of the services that `path` covers.
    #[must_use]
    pub fn client_attribute(self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.attribute(Target::Client, path, attribute)
    }

    /// Puts an attribute on the server modules of the services or packages that `path` covers.
    #[must_use]
    pub fn server_mod_attribute(self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.attribute(Target::ServerMod, path, attribute)
    }

    /// Puts an attribute on the server structs of the services that `path` covers.
    #[must_use]
    pub fn server_attribute(self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.attribute(Target::Server, path, attribute)
    }

    /// Puts an attribute on the server traits of the services that `path` covers.
    #[must_use]
    pub fn trait_attribute(self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.attribute(Target::Trait, path, attribute)
    }

    fn attribute(mut self, target: Target, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.attributes.push(AttributeRule {
            target,
            path: path.as_ref().to_owned(),
            text: attribute.as_ref().to_owned(),
        });
        self
    }
}

/// What is generated for messages and enums.
impl Builder {
    /// Puts an attribute on the messages, enums and oneofs that `path` covers.
    #[must_use]
    pub fn type_attribute(self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.attribute(Target::Type, path, attribute)
    }

    /// Puts an attribute on the messages that `path` covers.
    #[must_use]
    pub fn message_attribute(self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.attribute(Target::Message, path, attribute)
    }

    /// Puts an attribute on the enums and oneofs that `path` covers.
    #[must_use]
    pub fn enum_attribute(self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.attribute(Target::Enum, path, attribute)
    }

    /// Puts an attribute on the fields and enum values that `path` covers.
    #[must_use]
    pub fn field_attribute(self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.attribute(Target::Field, path, attribute)
    }

    /// Uses Rust types from elsewhere for a protobuf package or type.
    ///
    /// ```
    /// # let builder = byway_build::configure();
    /// builder.extern_path(".uuid", "::uuid_protos");
    /// ```
    #[must_use]
    pub fn extern_path(mut self, proto_path: impl AsRef<str>, rust_path: impl AsRef<str>) -> Self {
        let paths = (proto_path.as_ref().to_owned(), rust_path.as_ref().to_owned());
        self.extern_paths.push(paths);
        self
    }

    /// Boxes the fields that `path` covers. Recursive fields are boxed anyway.
    #[must_use]
    pub fn boxed(mut self, path: impl AsRef<str>) -> Self {
        self.boxed.push(path.as_ref().to_owned());
        self
    }

    /// Makes the map fields that `path` covers `BTreeMap`s, which have an order.
    /// Default: `HashMap`.
    #[must_use]
    pub fn btree_map(mut self, path: impl AsRef<str>) -> Self {
        self.btree_map.push(path.as_ref().to_owned());
        self
    }

    /// Makes the `bytes` fields that `path` covers `Vec<u8>`.
    ///
    /// Default: `Bytes`, which is sent and received without being copied. The maps of one
    /// message go together: covering one of them covers all.
    #[must_use]
    pub fn vec_bytes(mut self, path: impl AsRef<str>) -> Self {
        self.vec_bytes.push(path.as_ref().to_owned());
        self
    }

    /// Leaves `Debug` out of the types that `paths` cover, so that it can be written by hand.
    #[must_use]
    pub fn skip_debug<S: AsRef<str>>(mut self, paths: impl IntoIterator<Item = S>) -> Self {
        self.skip_debug.extend(strings(paths));
        self
    }

    /// Leaves proto comments out of what `paths` cover: messages, fields, services and methods.
    #[must_use]
    pub fn disable_comments<S: AsRef<str>>(mut self, paths: impl IntoIterator<Item = S>) -> Self {
        self.disable_comments.extend(strings(paths));
        self
    }

    /// Whether `google.protobuf` types are generated too, in package `google.protobuf`, instead
    /// of being taken from `prost_types`. Default: no.
    #[must_use]
    pub fn compile_well_known_types(mut self, enable: bool) -> Self {
        self.compile_well_known_types = enable;
        self
    }
}

/// Where things come from and where they go.
impl Builder {
    /// Also generates from the descriptor set in the file at `path`.
    ///
    /// This is for sources that cannot be parsed here, above all those that use protobuf
    /// editions. Write the file with `protoc --include_imports --include_source_info -o FILE`.
    /// It may be used together with [`compile_protos`](Self::compile_protos), or alone with
    /// [`compile`](Self::compile). Sources that import what cannot be parsed must come by such a
    /// file too.
    #[must_use]
    pub fn file_descriptor_set(mut self, path: impl AsRef<Path>) -> Self {
        self.descriptor_files.push(path.as_ref().to_owned());
        self
    }

    /// Writes a descriptor set of all sources and their imports to `path`, for reflection.
    /// Custom options, comments and source locations are in it.
    #[must_use]
    pub fn file_descriptor_set_path(mut self, path: impl AsRef<Path>) -> Self {
        self.file_descriptor_set_path = Some(path.as_ref().to_owned());
        self
    }

    /// Where Rust files are written. Default: the `OUT_DIR` of the build script.
    #[must_use]
    pub fn out_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.out_dir = Some(path.as_ref().to_owned());
        self
    }

    /// Also writes a file of this name that includes all others, each in the modules of its
    /// package. Packages that refer to each other need it, or the same modules written by hand.
    #[must_use]
    pub fn include_file(mut self, path: impl AsRef<Path>) -> Self {
        self.include_file = Some(path.as_ref().to_owned());
        self
    }

    /// Whether to tell Cargo about every file that is read, imports included, so that the build
    /// script runs again when one changes. Default: if Cargo runs this as a build script.
    #[must_use]
    pub fn emit_rerun_if_changed(mut self, enable: bool) -> Self {
        self.emit_rerun_if_changed = enable;
        self
    }
}

/// What ends a configuration.
impl Builder {
    /// Generates code for `protos` and all they import, which is searched for in `includes`.
    ///
    /// # Errors
    /// If a file is missing or broken, or what was asked for is impossible.
    pub fn compile_protos<P: AsRef<Path>>(self, protos: &[P], includes: &[P]) -> Result<(), Error> {
        let owned = |paths: &[P]| paths.iter().map(|path| path.as_ref().to_owned()).collect();
        compile::protos(self, owned(protos), owned(includes))
    }

    /// Generates code for a descriptor set that is already in memory.
    ///
    /// # Errors
    /// If an import is missing, or what was asked for is impossible.
    pub fn compile_fds(self, fds: FileDescriptorSet) -> Result<(), Error> {
        compile::descriptor_set(self, fds)
    }

    /// Generates code for the files given with
    /// [`file_descriptor_set`](Self::file_descriptor_set) alone.
    ///
    /// # Errors
    /// If a file is missing or broken, or what was asked for is impossible.
    pub fn compile(self) -> Result<(), Error> {
        compile::protos(self, Vec::new(), Vec::new())
    }

    /// The generator of clients and servers alone, for those who run `prost_build` themselves.
    ///
    /// Only options about services matter then. Give `prost_build` the
    /// `prost_path("::byway::codegen::prost")`, the
    /// `prost_types_path("::byway::codegen::prost_types")` and `bytes(["."])` that are in force
    /// otherwise, or depend on prost.
    ///
    /// # Panics
    /// If an attribute is not a Rust attribute.
    #[must_use]
    pub fn service_generator(self) -> Box<dyn prost_build::ServiceGenerator> {
        match Generator::new(&self) {
            Ok(generator) => Box::new(generator),
            Err(error) => panic!("{error}"),
        }
    }
}
