//! Owns what client and server have in common: the names, paths, types and comments of a service.
//!
//! Invariant: every Rust name that a service gives rise to is decided here, once.
//!
//! Never decides what code looks like; that is for `client` and `server`.

use proc_macro2::{Ident, TokenStream};
use prost_build::Comments;
use prost_types::method_options::IdempotencyLevel;
use quote::{ToTokens, format_ident, quote};

use crate::{builder::Builder, paths};

/// A service, ready to be written.
pub(crate) struct Service {
    /// Name of the trait, and the start of other names: `Echo`.
    pub(crate) name: Ident,
    /// Start of the module names, as tonic makes them: `echo`.
    pub(crate) snake_name: String,
    /// The name in paths: with the package, or without it if that is asked for.
    pub(crate) full_name: String,
    /// The name in the source, always with the package.
    pub(crate) proto_name: String,
    pub(crate) package: String,
    pub(crate) docs: Vec<String>,
    pub(crate) is_deprecated: bool,
    pub(crate) methods: Vec<Method>,
}

/// One rpc of a service.
pub(crate) struct Method {
    /// Name in the server trait.
    pub(crate) name: Ident,
    /// Name on the client.
    pub(crate) client_name: Ident,
    /// Name of the client's descriptor of it.
    pub(crate) static_name: Ident,
    /// Name of the server trait's associated type for response streams, as tonic makes it.
    pub(crate) stream_name: Ident,
    pub(crate) proto_name: String,
    pub(crate) kind: Kind,
    /// Where it is called: `/test.v1.Echo/Unary`.
    pub(crate) path: String,
    pub(crate) idempotency: Option<&'static str>,
    pub(crate) request: TokenStream,
    pub(crate) response: TokenStream,
    pub(crate) docs: Vec<String>,
    pub(crate) is_deprecated: bool,
}

/// Which sides of a call stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Unary,
    ClientStreaming,
    ServerStreaming,
    Streaming,
}

impl Kind {
    /// Name of the variant of the runtime's `MethodKind`.
    fn name(self) -> &'static str {
        match self {
            Kind::Unary => "Unary",
            Kind::ClientStreaming => "ClientStreaming",
            Kind::ServerStreaming => "ServerStreaming",
            Kind::Streaming => "Streaming",
        }
    }
}

impl Service {
    pub(crate) fn new(service: &prost_build::Service, options: &Builder) -> Self {
        let proto_name = match service.package.as_str() {
            "" => service.proto_name.clone(),
            package => format!("{package}.{}", service.proto_name),
        };
        let full_name = if options.emit_package { proto_name.clone() } else { service.proto_name.clone() };
        let methods = service.methods.iter();
        Self {
            name: ident(&service.name),
            snake_name: snake(&service.name),
            docs: docs(&service.comments, &proto_name, options),
            is_deprecated: service.options.deprecated(),
            methods: methods.map(|method| Method::new(method, &full_name, &proto_name, options)).collect(),
            package: service.package.clone(),
            full_name,
            proto_name,
        }
    }

    /// Whether code that is generated uses something deprecated, and must not warn about it.
    pub(crate) fn uses_deprecated(&self) -> bool {
        self.is_deprecated || self.methods.iter().any(|method| method.is_deprecated)
    }

    /// How a name that generated code imports is written in the module where the service's own
    /// trait is defined: in full if the trait hides it.
    pub(crate) fn imported(&self, name: &str) -> TokenStream {
        let ident = ident(name);
        if self.name != name {
            return ident.into_token_stream();
        }
        match name {
            "Into" => quote!(::core::convert::Into),
            "Clone" => quote!(::core::clone::Clone),
            "Result" => quote!(::core::result::Result),
            "Send" | "Sync" => quote!(::core::marker::#ident),
            _ => quote!(::byway::codegen::#ident),
        }
    }

    /// The server trait as a bound, told from type parameters of the same name.
    pub(crate) fn bound(&self) -> TokenStream {
        let name = &self.name;
        match name.to_string().len() {
            1 => quote!(self::#name),
            _ => name.into_token_stream(),
        }
    }
}

impl Method {
    fn new(
        method: &prost_build::Method,
        service_full_name: &str,
        service_proto_name: &str,
        options: &Builder,
    ) -> Self {
        let proto_name = &method.proto_name;
        let client_name = if CLIENT_FUNCTIONS.contains(&method.name.as_str()) {
            format!("{}_", method.name)
        } else {
            method.name.clone()
        };
        let path_in_proto = format!("{service_proto_name}.{proto_name}");
        Self {
            name: ident(&method.name),
            client_name: ident(&client_name),
            static_name: ident(&method.name.trim_start_matches("r#").to_uppercase()),
            stream_name: format_ident!("{proto_name}Stream"),
            proto_name: proto_name.clone(),
            kind: match (method.client_streaming, method.server_streaming) {
                (false, false) => Kind::Unary,
                (true, false) => Kind::ClientStreaming,
                (false, true) => Kind::ServerStreaming,
                (true, true) => Kind::Streaming,
            },
            path: format!("/{service_full_name}/{proto_name}"),
            idempotency: match method.options.idempotency_level() {
                IdempotencyLevel::IdempotencyUnknown => None,
                IdempotencyLevel::NoSideEffects => Some("NoSideEffects"),
                IdempotencyLevel::Idempotent => Some("Idempotent"),
            },
            request: message(&method.input_type),
            response: message(&method.output_type),
            docs: docs(&method.comments, &path_in_proto, options),
            is_deprecated: method.options.deprecated(),
        }
    }

    /// Whether the answer is a stream.
    pub(crate) fn has_stream(&self) -> bool {
        matches!(self.kind, Kind::ServerStreaming | Kind::Streaming)
    }

    /// The expression that describes this method to the runtime; `service` says how to write it.
    pub(crate) fn descriptor(&self, service: &Service) -> TokenStream {
        let descriptor = service.imported("MethodDescriptor");
        let method_kind = service.imported("MethodKind");
        let path = &self.path;
        let kind = ident(self.kind.name());
        let idempotency = self.idempotency.map(|level| {
            let idempotency = service.imported("Idempotency");
            let level = ident(level);
            quote!(.with_idempotency(#idempotency::#level))
        });
        quote!(#descriptor::new(#path, #method_kind::#kind) #idempotency)
    }
}

/// What every client has, and an rpc therefore cannot be called.
const CLIENT_FUNCTIONS: [&str; 6] =
    ["clone", "new", "connect", "with_interceptor", "max_decoding_message_size", "max_encoding_message_size"];

/// A name that prost made: valid, perhaps in its raw form.
pub(crate) fn ident(name: &str) -> Ident {
    match name.strip_prefix("r#") {
        Some(raw) => format_ident!("r#{raw}"),
        None => format_ident!("{name}"),
    }
}

/// Module names are part of tonic's shape, so they are made as tonic makes them: an underscore
/// before every capital but the first.
fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for (index, letter) in name.chars().enumerate() {
        if index > 0 && letter.is_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// The Rust type of a message, seen from a module inside that of its package.
///
/// prost gives a path from the package's own module, or something that is valid everywhere: an
/// absolute path, or what it replaces well-known types by.
fn message(rust_type: &str) -> TokenStream {
    const BUILT_IN: [&str; 8] = ["()", "bool", "f32", "f64", "i32", "i64", "u32", "u64"];
    let is_absolute = rust_type.starts_with("::") || rust_type.starts_with("crate::");
    let path = if is_absolute || BUILT_IN.contains(&rust_type) {
        rust_type.to_owned()
    } else {
        format!("super::{rust_type}")
    };
    path.parse().unwrap_or_else(|_| panic!("`{path}` is not a Rust type: see `extern_path`"))
}

/// The lines of documentation that the comments of `proto_name` make.
fn docs(comments: &Comments, proto_name: &str, options: &Builder) -> Vec<String> {
    if paths::any_matches(&options.disable_comments, proto_name) {
        return Vec::new();
    }
    // prost knows what in a comment rustdoc would take for markup, and writes it as doc comments.
    let attached = Comments { leading_detached: Vec::new(), ..comments.clone() };
    let mut text = String::new();
    attached.append_with_indent(0, &mut text);
    text.lines().map(|line| line.strip_prefix("///").unwrap_or(line).to_owned()).collect()
}

/// `lines` as documentation, or `instead` if there are none.
pub(crate) fn doc_attributes(lines: &[String], instead: &str) -> TokenStream {
    if lines.is_empty() {
        let instead = format!(" {instead}");
        return quote!(#[doc = #instead]);
    }
    quote!(#(#[doc = #lines])*)
}

/// `#[deprecated]`, if it is.
pub(crate) fn deprecation(is_deprecated: bool) -> Option<TokenStream> {
    is_deprecated.then(|| quote!(#[deprecated]))
}

#[cfg(test)]
mod tests {
    use super::{message, snake};

    #[test]
    fn module_names_are_those_of_tonic() {
        let cases = [
            ("Echo", "echo"),
            ("EchoServer", "echo_server"),
            ("V1Echo", "v1_echo"),
            ("ABTest", "a_b_test"),
            ("E", "e"),
        ];
        for (name, expected) in cases {
            assert_eq!(snake(name), expected);
        }
    }

    #[test]
    fn only_relative_types_are_seen_from_outside() {
        let cases = [
            ("Reply", "super :: Reply"),
            ("super::other::r#type::Reply", "super :: super :: other :: r#type :: Reply"),
            ("::byway::codegen::prost_types::Any", ":: byway :: codegen :: prost_types :: Any"),
            ("crate::other::Reply", "crate :: other :: Reply"),
            ("()", "()"),
            ("u64", "u64"),
        ];
        for (rust_type, expected) in cases {
            assert_eq!(message(rust_type).to_string(), expected);
        }
    }
}
