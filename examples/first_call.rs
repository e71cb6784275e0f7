//! Says how a first call goes on this machine, whatever state its RDMA is in.
//!
//! Serves on a free port of the loopback interface, calls itself by whatever is best and over plain TCP, and prints one
//! line: `path | reason | time of the first call | the same over plain TCP`. Always succeeds as long as calls do: RDMA is
//! never required. Usage: `first_call`, or `first_call serve ADDRESS` to serve and nothing else.

use std::error::Error;
use std::time::{Duration, Instant};

use byway::{Channel, Path, Rdma, RdmaOptions, Server, Transport};
use byway_test_support::reference::Reference;
use byway_test_support::test::v1::EchoRequest;
use byway_test_support::test::v1::echo_client::EchoClient;
use byway_test_support::test::v1::echo_server::EchoServer;
use tokio::sync::oneshot;

/// First calls over plain TCP whose median stands for one.
const PLAIN: usize = 5;

/// How long connecting may take.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (reference, _journal) = Reference::new();
    // On an emulated machine opening a device and agreeing take longer than by default a first call waits for them.
    let rdma = Rdma::new(RdmaOptions { agreement_timeout: LIMIT / 4, ..RdmaOptions::default() });
    let mut server = Server::builder().add_service(EchoServer::new(reference));
    if std::env::var_os("BYWAY_TRANSPORT").is_none() {
        server = server.rdma(rdma.clone());
    }
    if std::env::args().nth(1).is_some_and(|word| word == "serve") {
        let address = std::env::args().nth(2).ok_or("serve needs an address")?;
        return Ok(server.serve(address.as_str()).await?);
    }
    let server = server.bind("127.0.0.1:0").await?;
    let address = server.listening().to_string();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve_with_shutdown(async {
        let _ = stopped.await;
    }));

    let mut plain = Vec::new();
    for _ in 0..PLAIN {
        plain.push(first_call(&address, Transport::Tcp, &rdma).await?.1);
    }
    plain.sort_unstable();
    let (channel, took) = first_call(&address, Transport::Auto, &rdma).await?;
    let (path, reason) = match channel.path() {
        Path::Rdma { device } => ("rdma", device),
        Path::Tcp { why_not_better } => ("tcp", why_not_better.unwrap_or_default()),
        other => return Err(format!("an odd path: {other}").into()),
    };
    println!("{path} | {reason} | {} | {}", text(took), text(plain[PLAIN / 2]));
    drop((channel, stop));
    Ok(serving.await?)
}

/// A new channel's first call, and how long it took, connecting included.
async fn first_call(
    address: &str,
    transport: Transport,
    rdma: &Rdma,
) -> Result<(Channel, Duration), Box<dyn Error>> {
    let builder = Channel::builder(address).transport(transport).rdma(rdma.clone()).connect_timeout(LIMIT);
    let channel = builder.connect_lazy()?;
    let began = Instant::now();
    EchoClient::new(channel.clone()).unary(EchoRequest::default()).await?;
    Ok((channel, began.elapsed()))
}

fn text(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
