//! Owns the text of a service's server module: its trait, and the server with its two faces.
//!
//! Invariant: the trait is tonic's, word for word but for the crate; both faces of the server go
//! through one table of methods.
//!
//! Never refers to an imported name that the service's own trait may hide, except through
//! `Service::imported`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use crate::{
    builder::Target,
    generator::Generator,
    model::{Kind, Method, Service, deprecation, doc_attributes},
};

/// The module with the server of `service`.
pub(crate) fn module(service: &Service, generator: &Generator) -> TokenStream {
    let server_mod = format_ident!("{}_server", service.snake_name);
    let mod_doc = doc_attributes(&[], &format!("Server of `{}`.", service.full_name));
    let mod_attributes = generator.attributes(Target::ServerMod, service);
    let allow_deprecated = service.uses_deprecated().then(|| quote!(deprecated,));
    let service_trait = service_trait(service, generator);
    let server = server(service, generator);
    let dispatch = dispatch(service, generator);
    let tower = tower_face(service);
    let name = name(service);
    quote! {
        #mod_doc
        #mod_attributes
        #[allow(dead_code, missing_docs, unreachable_pub, #allow_deprecated clippy::all, clippy::pedantic)]
        pub mod #server_mod {
            use ::byway::codegen::*;

            #service_trait
            #server
            #dispatch
            #tower
            #name
        }
    }
}

/// The trait that a service is implemented by.
fn service_trait(service: &Service, generator: &Generator) -> TokenStream {
    let name = &service.name;
    let send = service.imported("Send");
    let sync = service.imported("Sync");
    let doc = doc_attributes(&service.docs, &format!("Serves `{}`.", service.full_name));
    let attributes = generator.attributes(Target::Trait, service);
    let deprecated = deprecation(service.is_deprecated);
    let allow_names = allow_stream_names(service, generator);
    let methods = (service.methods.iter()).map(|method| trait_method(method, service, generator));
    quote! {
        #doc
        #attributes
        #deprecated
        #allow_names
        #[async_trait]
        pub trait #name: #send + #sync + 'static {
            #(#methods)*
        }
    }
}

/// Streams are named as tonic names them, after rpcs whose names need not be in camel case.
fn allow_stream_names(service: &Service, generator: &Generator) -> Option<TokenStream> {
    let is_odd = |name: &str| name.starts_with(|c: char| !c.is_uppercase()) || name.contains('_');
    let mut methods = service.methods.iter();
    let is_any_odd = methods.any(|method| method.has_stream() && is_odd(&method.proto_name));
    (is_any_odd && !generator.options.generate_default_stubs).then(|| quote!(#[allow(non_camel_case_types)]))
}

fn trait_method(method: &Method, service: &Service, generator: &Generator) -> TokenStream {
    let Method { name, stream_name, request, response, .. } = method;
    let has_body = generator.options.generate_default_stubs;
    let result = service.imported("Result");
    let send = service.imported("Send");
    let instead = format!("Serves `{}/{}`.", service.full_name, method.proto_name);
    let doc = doc_attributes(&method.docs, &instead);
    let deprecated = deprecation(method.is_deprecated);

    let receiver = if generator.options.use_arc_self {
        let arc = service.imported("Arc");
        quote!(self: #arc<Self>)
    } else {
        quote!(&self)
    };
    let argument = match method.kind {
        Kind::Unary | Kind::ServerStreaming => quote!(#request),
        Kind::ClientStreaming | Kind::Streaming => quote!(::byway::Streaming<#request>),
    };
    let (stream, answer) = match method.kind {
        Kind::Unary | Kind::ClientStreaming => (None, quote!(#response)),
        Kind::ServerStreaming | Kind::Streaming if has_body => {
            let stream = service.imported("BoxStream");
            (None, quote!(#stream<#response>))
        }
        Kind::ServerStreaming | Kind::Streaming => {
            let doc = format!(" Stream of responses of the {} method.", method.proto_name);
            let stream = quote! {
                #[doc = #doc]
                type #stream_name: tokio_stream::Stream<
                    Item = #result<#response, ::byway::Status>,
                > + #send + 'static;
            };
            (Some(stream), quote!(Self::#stream_name))
        }
    };
    let body = if has_body {
        quote!({ Err(::byway::Status::unimplemented("Not yet implemented")) })
    } else {
        quote!(;)
    };
    // Nobody reads the argument of a body that only refuses.
    let request = if has_body { format_ident!("_request") } else { format_ident!("request") };
    quote! {
        #stream
        #doc
        #deprecated
        async fn #name(
            #receiver,
            #request: ::byway::Request<#argument>,
        ) -> #result<::byway::Response<#answer>, ::byway::Status> #body
    }
}

/// The struct that serves an implementation, and its settings.
fn server(service: &Service, generator: &Generator) -> TokenStream {
    let server = format_ident!("{}Server", service.name);
    let doc = doc_attributes(&[], &format!("Serves an implementation of [`{}`].", service.name));
    let attributes = generator.attributes(Target::Server, service);
    let deprecated = deprecation(service.is_deprecated);
    let arc = service.imported("Arc");
    let settings = service.imported("ServiceSettings");
    let interceptor = service.imported("Interceptor");
    let intercepted = service.imported("InterceptedService");
    let encoding = service.imported("CompressionEncoding");
    let clone = service.imported("Clone");
    quote! {
        #doc
        #attributes
        #deprecated
        #[derive(Debug)]
        pub struct #server<T> {
            inner: #arc<T>,
            settings: #settings,
        }

        impl<T> #server<T> {
            /// Serves `inner`.
            pub fn new(inner: T) -> Self {
                Self::from_arc(#arc::new(inner))
            }

            /// Serves `inner`, which may have other owners.
            pub fn from_arc(inner: #arc<T>) -> Self {
                Self { inner, settings: #settings::default() }
            }

            /// Serves `inner`, and has `interceptor` see every request first.
            pub fn with_interceptor<F: #interceptor>(
                inner: T,
                interceptor: F,
            ) -> #intercepted<Self, F> {
                #intercepted::new(Self::new(inner), interceptor)
            }

            /// Accepts requests compressed with `encoding`.
            #[must_use]
            pub fn accept_compressed(mut self, encoding: #encoding) -> Self {
                self.settings.accept_compressed.enable(encoding);
                self
            }

            /// Compresses responses with `encoding`, if the client accepts it.
            #[must_use]
            pub fn send_compressed(mut self, encoding: #encoding) -> Self {
                self.settings.send_compressed.enable(encoding);
                self
            }

            /// Limits the size of a request message, in bytes.
            #[must_use]
            pub fn max_decoding_message_size(mut self, limit: usize) -> Self {
                self.settings.max_decoding_message_size = Some(limit);
                self
            }

            /// Limits the size of a response message, in bytes.
            #[must_use]
            pub fn max_encoding_message_size(mut self, limit: usize) -> Self {
                self.settings.max_encoding_message_size = Some(limit);
                self
            }
        }

        impl<T> #clone for #server<T> {
            fn clone(&self) -> Self {
                Self { inner: #arc::clone(&self.inner), settings: self.settings }
            }
        }
    }
}

/// The table of methods, and byway's own face, which goes by position in it.
fn dispatch(service: &Service, generator: &Generator) -> TokenStream {
    let server = format_ident!("{}Server", service.name);
    let bound = service.bound();
    let descriptor = service.imported("MethodDescriptor");
    let method_call = service.imported("MethodCall");
    let direct = service.imported("Direct");
    let server_call = service.imported("ServerCall");
    let handling = service.imported("Handling");
    let arc = service.imported("Arc");
    let descriptors = service.methods.iter().map(|method| method.descriptor(service));

    let arms = service.methods.iter().enumerate().map(|(position, method)| {
        let position = proc_macro2::Literal::usize_unsuffixed(position);
        let name = &method.name;
        let inner = if generator.options.use_arc_self { quote!(inner) } else { quote!(&inner) };
        let shape = match method.kind {
            Kind::Unary => quote!(unary),
            Kind::ClientStreaming => quote!(client_streaming),
            Kind::ServerStreaming => quote!(server_streaming),
            Kind::Streaming => quote!(streaming),
        };
        quote! {
            #position => call.#shape(move |request| async move { T::#name(#inner, request).await }),
        }
    });
    let body = if service.methods.is_empty() {
        quote!(let _ = method; call.unknown_method())
    } else {
        quote! {
            let inner = #arc::clone(&self.inner);
            match method {
                #(#arms)*
                _ => call.unknown_method(),
            }
        }
    };
    quote! {
        static METHODS: &[#descriptor] = &[#(#descriptors),*];

        impl<T: #bound> #server<T> {
            /// Runs the method at this position of `METHODS`.
            fn dispatch<C: #method_call>(&self, method: usize, call: C) -> C::Output {
                #body
            }
        }

        impl<T: #bound> #direct for #server<T> {
            fn methods(&self) -> &'static [#descriptor] {
                METHODS
            }

            fn handle(&self, method: usize, call: #server_call) -> #handling {
                self.dispatch(method, call.with_settings(&self.settings))
            }
        }
    }
}

/// The face that tower, tonic's server and its layers see.
fn tower_face(service: &Service) -> TokenStream {
    let server = format_ident!("{}Server", service.name);
    let bound = service.bound();
    let tower_service = service.imported("Service");
    let body = service.imported("Body");
    let send = service.imported("Send");
    let into = service.imported("Into");
    let std_error = service.imported("StdError");
    let infallible = service.imported("Infallible");
    let box_future = service.imported("BoxFuture");
    let context = service.imported("Context");
    let poll = service.imported("Poll");
    let result = service.imported("Result");
    let descriptor = service.imported("MethodDescriptor");
    let http_call = service.imported("HttpCall");
    quote! {
        impl<T, B> #tower_service<http::Request<B>> for #server<T>
        where
            T: #bound,
            B: #body + #send + 'static,
            B::Error: #into<#std_error> + #send + 'static,
        {
            type Response = http::Response<tonic::body::Body>;
            type Error = #infallible;
            type Future = #box_future<Self::Response, Self::Error>;

            fn poll_ready(&mut self, _: &mut #context<'_>) -> #poll<#result<(), Self::Error>> {
                #poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<B>) -> Self::Future {
                let method = #descriptor::position(METHODS, request.uri().path());
                self.dispatch(method, #http_call::new(request, self.settings))
            }
        }
    }
}

/// The name under which a server is registered.
fn name(service: &Service) -> TokenStream {
    let server = format_ident!("{}Server", service.name);
    let full_name = &service.full_name;
    let named = service.imported("NamedService");
    quote! {
        /// Full name of the service.
        pub const SERVICE_NAME: &str = #full_name;

        impl<T> #named for #server<T> {
            const NAME: &'static str = SERVICE_NAME;
        }
    }
}
