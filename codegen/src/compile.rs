//! Owns the way from descriptors to files: configures prost, formats what it gives, writes it.
//!
//! Invariant: a file is written only if its content changed, so that an unchanged source causes
//! no rebuild; and nothing is written before all has been generated.
//!
//! Never decides what an option means for a service; `generator` does.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use prost_build::{Config, Module};
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};

use crate::{
    Error,
    builder::{Builder, Target},
    descriptors::Descriptors,
    format,
    generator::Generator,
    paths,
};

/// File name of the package without a name; tonic's users know it.
const NAMELESS: &str = "_";

/// Generates from sources and the descriptor files in `options`.
pub(crate) fn protos(options: Builder, protos: Vec<PathBuf>, includes: Vec<PathBuf>) -> Result<(), Error> {
    let mut descriptors = Descriptors::default();
    add_descriptor_files(&mut descriptors, &options)?;
    descriptors.add_protos(&protos, &includes)?;
    generate(&descriptors, options)
}

/// Generates from a descriptor set and the descriptor files in `options`.
pub(crate) fn descriptor_set(options: Builder, set: FileDescriptorSet) -> Result<(), Error> {
    let mut descriptors = Descriptors::default();
    add_descriptor_files(&mut descriptors, &options)?;
    descriptors.add_set(set)?;
    generate(&descriptors, options)
}

fn add_descriptor_files(descriptors: &mut Descriptors, options: &Builder) -> Result<(), Error> {
    for path in &options.descriptor_files {
        descriptors.add_descriptor_file(path)?;
    }
    Ok(())
}

fn generate(descriptors: &Descriptors, options: Builder) -> Result<(), Error> {
    descriptors.check_imports()?;
    let (out_dir, is_default) = match (&options.out_dir, env::var_os("OUT_DIR")) {
        (Some(out_dir), _) => (out_dir.clone(), false),
        (None, Some(out_dir)) => (out_dir.into(), true),
        (None, None) => return Err(Error::NoOutDir),
    };
    let requests: Vec<_> = (descriptors.files().iter())
        .map(|file| (Module::from_protobuf_package_name(file.package()), file.clone()))
        .collect();
    let mut packages = Packages::default();
    for (module, file) in &requests {
        packages.entry(module.clone()).or_default().add(file);
    }
    let generated = (config(&options, descriptors)?.generate(requests))
        .map_err(|source| Error::Generate { package: String::new(), source: source.into() })?;

    let mut files = BTreeMap::new();
    for (module, code) in &generated {
        let package = &packages[module];
        let mut code = syn::parse_file(code)
            .map_err(|source| Error::Generate { package: package.name.clone(), source: source.into() })?;
        allow_inception(&mut code, module);
        let text = package.header() + &format::rust(code);
        files.insert(out_dir.join(file_name(module)), text);
    }
    if let Some(path) = &options.include_file {
        let modules = generated.keys().collect();
        files.insert(out_dir.join(path), include_file(modules, is_default));
    }
    for (path, content) in files {
        write(&path, content.as_bytes())?;
    }
    if let Some(path) = &options.file_descriptor_set_path {
        write(path, &descriptors.encode())?;
    }
    if options.emit_rerun_if_changed {
        for source in descriptors.sources() {
            println!("cargo:rerun-if-changed={}", source.display());
        }
    }
    Ok(())
}

/// prost's configuration, with what byway wants of it and what was asked for.
fn config(options: &Builder, descriptors: &Descriptors) -> Result<Config, Error> {
    let generator = Generator::new(options)?;
    let mut config = Config::new();
    // Everything is formatted in one go afterwards, which also reports errors without a panic.
    config.format(false);
    config.prost_path("::byway::codegen::prost");
    config.prost_types_path("::byway::codegen::prost_types");
    config.bytes(bytes_fields(descriptors.files(), &options.vec_bytes));
    config.btree_map(&options.btree_map);
    config.skip_debug(&options.skip_debug);
    config.disable_comments(&options.disable_comments);
    config.type_attribute(".", "#[allow(clippy::all)]");
    for path in &options.boxed {
        config.boxed(path);
    }
    for (proto_path, rust_path) in &options.extern_paths {
        config.extern_path(proto_path, rust_path);
    }
    for rule in &options.attributes {
        match rule.target {
            Target::Type => config.type_attribute(&rule.path, &rule.text),
            Target::Message => config.message_attribute(&rule.path, &rule.text),
            Target::Enum => config.enum_attribute(&rule.path, &rule.text),
            Target::Field => config.field_attribute(&rule.path, &rule.text),
            // These are for the service generator.
            Target::ClientMod | Target::Client | Target::ServerMod | Target::Server | Target::Trait => {
                &mut config
            }
        };
    }
    if options.compile_well_known_types {
        config.compile_well_known_types();
    }
    if options.build_client || options.build_server {
        config.service_generator(Box::new(generator));
    }
    Ok(config)
}

/// The names under which prost asks about each `bytes` field that no pattern in `vec_bytes`
/// covers. prost can be told which fields are `Bytes`, but not which are not.
fn bytes_fields(files: &[FileDescriptorProto], vec_bytes: &[String]) -> Vec<String> {
    let mut fields = Vec::new();
    for file in files {
        for message in &file.message_type {
            let name = match file.package() {
                "" => message.name().to_owned(),
                package => format!("{package}.{}", message.name()),
            };
            collect_bytes_fields(message, &name, vec_bytes, &mut fields);
        }
    }
    fields
}

fn collect_bytes_fields(
    message: &DescriptorProto,
    name: &str,
    vec_bytes: &[String],
    fields: &mut Vec<String>,
) {
    // prost asks about the values of all maps of a message under one name, as if they were a
    // field of it; so a pattern that covers one of them covers all.
    let mut map_values = None;
    for field in &message.field {
        let field_name = format!("{name}.{}", field.name());
        let is_bytes = !paths::any_matches(vec_bytes, &field_name);
        if field.r#type() == Type::Bytes && is_bytes {
            fields.push(format!(".{field_name}"));
        } else if is_map_of_bytes(message, name, field.type_name()) {
            map_values = Some(is_bytes && map_values.unwrap_or(true));
        }
    }
    if map_values == Some(true) {
        fields.push(format!(".{name}.value"));
    }
    for nested in &message.nested_type {
        collect_bytes_fields(nested, &format!("{name}.{}", nested.name()), vec_bytes, fields);
    }
}

/// Whether `type_name` is that of the entries of a map in `message` whose values are bytes.
fn is_map_of_bytes(message: &DescriptorProto, name: &str, type_name: &str) -> bool {
    message.nested_type.iter().any(|nested| {
        nested.options.as_ref().is_some_and(|options| options.map_entry())
            && type_name.strip_prefix('.') == Some(&format!("{name}.{}", nested.name()))
            && nested.field.iter().any(|f| f.number() == 2 && f.r#type() == Type::Bytes)
    })
}

/// What goes into each file.
type Packages = BTreeMap<Module, Package>;

/// A protobuf package and the sources that it is in.
#[derive(Default)]
struct Package {
    name: String,
    sources: BTreeSet<String>,
}

impl Package {
    fn add(&mut self, file: &FileDescriptorProto) {
        self.name = file.package().to_owned();
        self.sources.insert(file.name().to_owned());
    }

    fn header(&self) -> String {
        let sources: Vec<_> = self.sources.iter().map(String::as_str).collect();
        format!("// @generated by byway-build from {}\n\n", sources.join(", "))
    }
}

/// The types inside message `Order` of package `order` are in `order::order`, and clippy frowns.
fn allow_inception(code: &mut syn::File, module: &Module) {
    let package = module.parts().last();
    for item in &mut code.items {
        if let syn::Item::Mod(item) = item
            && Some(item.ident.to_string().as_str()) == package
        {
            item.attrs.push(syn::parse_quote!(#[allow(clippy::module_inception)]));
        }
    }
}

/// The file for a package is named after it, without the marks that Rust needs for keywords.
fn file_name(module: &Module) -> String {
    module.to_file_name_or(NAMELESS).replace("r#", "")
}

/// The text of a file that includes all others in the modules of their packages.
fn include_file(mut modules: Vec<&Module>, is_in_out_dir: bool) -> String {
    modules.sort();
    let mut text = String::from("// @generated by byway-build\n\n");
    let mut open: Vec<&str> = Vec::new();
    for module in modules {
        let parts: Vec<&str> = module.parts().collect();
        let common = (open.iter().zip(&parts)).take_while(|(a, b)| a == b).count();
        close_modules(&mut text, &mut open, common);
        for part in &parts[common..] {
            push_line(&mut text, open.len(), &format!("pub mod {part} {{"));
            open.push(part);
        }
        let name = file_name(module);
        let include = if is_in_out_dir {
            format!("include!(concat!(env!(\"OUT_DIR\"), \"/{name}\"));")
        } else {
            format!("include!(\"{name}\");")
        };
        push_line(&mut text, open.len(), &include);
    }
    close_modules(&mut text, &mut open, 0);
    text
}

fn close_modules(text: &mut String, open: &mut Vec<&str>, remaining: usize) {
    while open.len() > remaining {
        open.pop();
        push_line(text, open.len(), "}");
    }
}

fn push_line(text: &mut String, depth: usize, line: &str) {
    let indent = "    ".repeat(depth);
    writeln!(text, "{indent}{line}").expect("a String takes all that is written to it");
}

fn write(path: &Path, content: &[u8]) -> Result<(), Error> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    fs::write(path, content).map_err(|source| Error::Io { action: "write", path: path.to_owned(), source })
}
