//! The services in front of an engine, and the server that has them all.
//!
//! Owns which services a server answers, their health and the key that guards them. Invariant: health says SERVING for a
//! service if and only if it is built.

mod auth;
mod batch;
mod convert;
mod embed;
mod info;
mod unbuilt;

use std::sync::Arc;
use std::time::Duration;

use byway::{InterceptedService, Server, ServerBuilder};
use tonic_health::ServingStatus;

use crate::engine::Engine;
use crate::pb::byway::embedding::v1::batch_embed_server::BatchEmbedServer;
use crate::pb::tei::v1::embed_server::EmbedServer;
use crate::pb::tei::v1::info_server::InfoServer;
use crate::pb::tei::v1::predict_server::PredictServer;
use crate::pb::tei::v1::rerank_server::RerankServer;
use crate::pb::tei::v1::tokenize_server::TokenizeServer;
use auth::Auth;
use batch::BatchService;
use embed::EmbedService;
use info::InfoService;
use unbuilt::Unbuilt;

/// Services that are built.
pub const SERVING: [&str; 3] = ["tei.v1.Info", "tei.v1.Embed", "byway.embedding.v1.BatchEmbed"];

/// Services that answer every call with UNIMPLEMENTED.
pub const NOT_SERVING: [&str; 3] = ["tei.v1.Predict", "tei.v1.Rerank", "tei.v1.Tokenize"];

/// How long open calls may take once the server was told to stop. Less than the 30 s after which Kubernetes kills: a watch of
/// the health service never ends by itself.
const DRAIN: Duration = Duration::from_secs(20);

/// What a server says and asks for, beside its engine.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Name of the model in `Info`, if it is not that which it was opened by.
    pub served_model_name: Option<String>,
    /// Key that callers of the services must have; health and reflection need none.
    pub api_key: Option<String>,
}

/// A server with all services, to be bound to an address.
///
/// # Errors
/// The descriptors cannot be read, which would be a broken build.
pub async fn server(
    engine: Arc<Engine>,
    options: Options,
) -> Result<ServerBuilder, tonic_reflection::server::Error> {
    let auth = options.api_key.as_deref().map(Auth::new);
    let mut server = Server::builder().drain_timeout(DRAIN);
    macro_rules! add {
        ($service:expr) => {
            server = match &auth {
                // A guarded service is one behind a layer, which byway's own fast way would bypass.
                Some(auth) => server.add_tower_service(InterceptedService::new($service, auth.clone())),
                None => server.add_service($service),
            }
        };
    }
    add!(InfoServer::new(InfoService::new(Arc::clone(&engine), options.served_model_name)));
    add!(EmbedServer::new(EmbedService::new(Arc::clone(&engine))));
    add!(BatchEmbedServer::new(BatchService::new(engine)));
    add!(PredictServer::new(Unbuilt));
    add!(RerankServer::new(Unbuilt));
    add!(TokenizeServer::new(Unbuilt));

    let (reporter, health) = tonic_health::server::health_reporter();
    let statuses = [(SERVING, ServingStatus::Serving), (NOT_SERVING, ServingStatus::NotServing)];
    for (names, status) in statuses {
        for name in names {
            reporter.set_service_status(name, status).await;
        }
    }
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(crate::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(server
        .add_tower_service(health)
        .add_tower_service(reflection().build_v1()?)
        .add_tower_service(reflection().build_v1alpha()?))
}
