//! Owns the text of a service's client module.
//!
//! Invariant: `&self` is enough to call, and each rpc is one line that hands over to the runtime.
//!
//! Never refers to the server module, which may not be there.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use crate::{
    builder::Target,
    generator::Generator,
    model::{Kind, Method, Service, deprecation, doc_attributes},
};

/// The module with the client of `service`.
pub(crate) fn module(service: &Service, generator: &Generator) -> TokenStream {
    let client_mod = format_ident!("{}_client", service.snake_name);
    let client = format_ident!("{}Client", service.name);
    let mod_doc = doc_attributes(&[], &format!("Client of `{}`.", service.full_name));
    let mod_attributes = generator.attributes(Target::ClientMod, service);
    let allow_deprecated = service.uses_deprecated().then(|| quote!(deprecated,));
    let doc = doc_attributes(&service.docs, &format!("Calls `{}`.", service.full_name));
    let attributes = generator.attributes(Target::Client, service);
    let deprecated = deprecation(service.is_deprecated);
    let connect = generator.options.build_transport.then(|| {
        quote! {
            impl #client<::byway::Channel> {
                /// Connects to `target`, for example `byway://host:port`.
                pub async fn connect(target: impl AsRef<str>) -> Result<Self, ::byway::ConnectError> {
                    Ok(Self::new(::byway::Channel::connect(target).await?))
                }
            }
        }
    });
    let methods = service.methods.iter().map(|method| call(method, service));
    let descriptors = service.methods.iter().map(|method| {
        let name = &method.static_name;
        let descriptor = method.descriptor(service);
        quote!(static #name: MethodDescriptor = #descriptor;)
    });

    quote! {
        #mod_doc
        #mod_attributes
        #[allow(dead_code, missing_docs, unreachable_pub, #allow_deprecated clippy::all, clippy::pedantic)]
        pub mod #client_mod {
            use ::byway::codegen::*;

            #doc
            #attributes
            #deprecated
            #[derive(Debug, Clone)]
            pub struct #client<T> {
                inner: T,
                options: CallOptions,
            }

            #connect

            impl<T: Invoke> #client<T> {
                /// Calls over `inner`, for example a `byway::Channel`.
                pub fn new(inner: T) -> Self {
                    Self { inner, options: CallOptions::default() }
                }

                /// Has `interceptor` see every request before it is sent.
                pub fn with_interceptor<F>(
                    inner: T,
                    interceptor: F,
                ) -> #client<Intercepted<T, F>>
                where
                    F: Interceptor + Clone,
                    Intercepted<T, F>: Invoke,
                {
                    #client::new(Intercepted::new(inner, interceptor))
                }

                /// Limits the size of a response message, in bytes.
                #[must_use]
                pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
                    self.options.max_decoding_message_size = Some(limit);
                    self
                }

                /// Limits the size of a request message, in bytes.
                #[must_use]
                pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
                    self.options.max_encoding_message_size = Some(limit);
                    self
                }

                #(#methods)*
            }

            #(#descriptors)*
        }
    }
}

/// The function that calls `method`.
fn call(method: &Method, service: &Service) -> TokenStream {
    let Method { client_name, static_name, request, response, .. } = method;
    let instead = format!("Calls `{}/{}`.", service.full_name, method.proto_name);
    let doc = doc_attributes(&method.docs, &instead);
    let deprecated = deprecation(method.is_deprecated);
    let (argument, into_request) = match method.kind {
        Kind::Unary | Kind::ServerStreaming => (quote!(::byway::IntoRequest<#request>), quote!(into_request)),
        Kind::ClientStreaming | Kind::Streaming => {
            (quote!(::byway::IntoStreamingRequest<Message = #request>), quote!(into_streaming_request))
        }
    };
    let (function, answer) = match method.kind {
        Kind::Unary => (quote!(unary), quote!(#response)),
        Kind::ClientStreaming => (quote!(client_streaming), quote!(#response)),
        Kind::ServerStreaming => (quote!(server_streaming), quote!(::byway::Streaming<#response>)),
        Kind::Streaming => (quote!(streaming), quote!(::byway::Streaming<#response>)),
    };
    quote! {
        #doc
        #deprecated
        pub async fn #client_name(
            &self,
            request: impl #argument,
        ) -> Result<::byway::Response<#answer>, ::byway::Status> {
            let request = request.#into_request();
            client::#function(&self.inner, &#static_name, self.options, request).await
        }
    }
}
