//! Owns the `prost_build::ServiceGenerator`: from one protobuf service to the text of its modules.
//!
//! Invariant: what it writes is valid Rust, since attributes are parsed when it is made.
//!
//! Never touches messages; prost writes those.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::parse::Parser;

use crate::{
    Error,
    builder::{AttributeRule, Builder, Target},
    client, format,
    model::Service,
    paths, server,
};

/// What a service is generated with.
#[derive(Debug)]
pub(crate) struct Generator {
    pub(crate) options: Builder,
    attributes: Vec<(AttributeRule, TokenStream)>,
}

impl Generator {
    /// Fails if an attribute is not a Rust attribute.
    pub(crate) fn new(options: &Builder) -> Result<Self, Error> {
        let parsed = |rule: &AttributeRule| Ok((rule.clone(), parse_attribute(rule)?));
        Ok(Self {
            options: options.clone(),
            attributes: options.attributes.iter().map(parsed).collect::<Result<_, _>>()?,
        })
    }

    /// The attributes that `service` has on its `target`.
    pub(crate) fn attributes(&self, target: Target, service: &Service) -> TokenStream {
        let is_mod = matches!(target, Target::ClientMod | Target::ServerMod);
        self.attributes
            .iter()
            .filter(|(rule, _)| rule.target == target)
            .filter(|(rule, _)| {
                paths::matches(&rule.path, &service.proto_name)
                    || (is_mod && paths::matches(&rule.path, &service.package))
            })
            .map(|(_, tokens)| tokens.clone())
            .collect()
    }
}

fn parse_attribute(rule: &AttributeRule) -> Result<TokenStream, Error> {
    let attributes = syn::Attribute::parse_outer.parse_str(&rule.text).map_err(|source| {
        Error::Attribute { path: rule.path.clone(), attribute: rule.text.clone(), source: source.into() }
    })?;
    Ok(attributes.iter().map(ToTokens::to_token_stream).collect())
}

impl prost_build::ServiceGenerator for Generator {
    fn generate(&mut self, service: prost_build::Service, buf: &mut String) {
        let service = Service::new(&service, &self.options);
        let mut tokens = TokenStream::new();
        if self.options.build_client {
            tokens.extend(client::module(&service, self));
        }
        if self.options.build_server {
            tokens.extend(server::module(&service, self));
        }
        let file =
            syn::parse2(tokens).unwrap_or_else(|error| panic!("service {}: {error}", service.proto_name));
        buf.push_str(&format::rust(file));
    }
}
