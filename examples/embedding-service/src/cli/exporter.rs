//! The port that metrics are read from.
//!
//! Owns the process's recorder, its port and the one page on it. Invariants: a reader that is slow or says nothing is cut
//! off, and only a few are served at once. Never: touches calls.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use embedding_service::metrics;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::cli::Failure;

/// Readers at once: one scraper, its retries, and somebody who looks.
const MAX_READERS: usize = 16;

/// How long a reader may take for all it wants.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// How often samples that were recorded are summed up, so that they do not pile up between two readers.
const UPKEEP: Duration = Duration::from_secs(5);

pub(super) struct Exporter {
    listener: TcpListener,
    address: SocketAddr,
    handle: PrometheusHandle,
}

impl Exporter {
    /// Listens, and starts recording.
    pub(super) async fn bind(host: &str, port: u16, max_tokens: usize) -> Result<Self, Failure> {
        let listen = |source: io::Error| {
            format!(
                "metrics cannot be served on {host}:{port}: {source}; choose another --prometheus-port, or 0"
            )
        };
        let listener = TcpListener::bind((host, port)).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let durations = Matcher::Suffix(metrics::DURATION_SUFFIX.to_owned());
        let lengths = Matcher::Full(metrics::LENGTH.to_owned());
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(durations, &metrics::duration_buckets())?
            .set_buckets_for_metric(lengths, &metrics::length_buckets(max_tokens))?
            .install_recorder()?;
        Ok(Self { listener, address, handle })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// Serves for as long as the future is polled.
    pub(super) async fn serve(self) {
        let readers = Arc::new(Semaphore::new(MAX_READERS));
        let mut upkeep = tokio::time::interval(UPKEEP);
        loop {
            tokio::select! {
                _ = upkeep.tick() => self.handle.run_upkeep(),
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        // Beyond that many the stream is dropped, which the reader sees.
                        let Ok(permit) = Arc::clone(&readers).try_acquire_owned() else { continue };
                        let handle = self.handle.clone();
                        tokio::spawn(async move {
                            let _ = tokio::time::timeout(TIME_LIMIT, converse(stream, handle)).await;
                            drop(permit);
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a reader of metrics could not be accepted");
                        // Out of descriptors, most likely, and trying at once would not find any.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
            }
        }
    }
}

async fn converse(stream: TcpStream, handle: PrometheusHandle) {
    let service =
        service_fn(move |request| std::future::ready(Ok::<_, Infallible>(answer(&request, &handle))));
    let result = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = result {
        tracing::debug!(%error, "a reader of metrics left");
    }
}

fn answer(request: &Request<Incoming>, handle: &PrometheusHandle) -> Response<Full<Bytes>> {
    let (status, text) = if request.method() != Method::GET {
        (StatusCode::METHOD_NOT_ALLOWED, "GET /metrics\n".to_owned())
    } else if request.uri().path() != "/metrics" {
        (StatusCode::NOT_FOUND, "metrics are at /metrics\n".to_owned())
    } else {
        metrics::connections();
        (StatusCode::OK, handle.render())
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
