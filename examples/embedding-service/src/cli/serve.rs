//! `serve`: a server until it is told to stop.
//!
//! Owns the order of things: model, engine, metrics, port, one line that says where, calls, drain.

use std::io::Write;
use std::sync::Arc;

use byway::Address;
use embedding_service::engine::Engine;
use embedding_service::{model, service};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::cli::Failure;
use crate::cli::args::ServeArgs;
use crate::cli::exporter::Exporter;

pub(super) async fn run(args: ServeArgs) -> Result<(), Failure> {
    args.refused.check()?;
    log(args.json_output);
    // From here on a signal is an orderly end, also while the model is being loaded.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (backend, prompts) = model::open(&args.model_id)?;
    let prompts = prompts.with_default(args.prompt())?;
    let engine = Arc::new(Engine::start(backend, prompts, args.settings())?);
    let description = engine.description();
    tracing::info!(model = description.model_id, dimensions = description.dimensions, "the model is loaded");

    let exporter = Exporter::bind(&args.hostname, args.prometheus_port, engine.max_tokens()).await?;
    let address = match &args.uds_path {
        Some(path) => Address::Unix(path.clone()),
        None => Address::Internet { host: args.hostname.clone(), port: args.port },
    };
    let server = service::server(engine, args.options()).await?.bind(address).await?;
    // Whoever started this waits for the line, which a pipe would otherwise keep.
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "listening on {}, metrics on {}", server.listening(), exporter.url())?;
    stdout.flush()?;
    drop(stdout);
    let exporting = tokio::spawn(exporter.serve());
    server
        .serve_with_shutdown(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        })
        .await;
    exporting.abort();
    Ok(())
}

/// Log lines go to standard error; `RUST_LOG` says which, those of importance unless it is set.
fn log(as_json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if as_json {
        lines.json().init();
    } else {
        lines.init();
    }
}
