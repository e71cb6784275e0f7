//! Channels that meet gRPC, because they were told to or because nothing else is there.

use byway::{Address, Channel, Code, Server, Transport};
use byway_test_support::reference::Reference;
use byway_test_support::shared::test::v1::echo_client::EchoClient as StockClient;
use byway_test_support::shared::test::v1::echo_server::EchoServer as StockServer;
use byway_test_support::test::v1::echo_client::EchoClient;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;

use crate::harness::{Running, served, soon, story, text};

/// A server of tonic's alone.
struct Plain {
    address: String,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Plain {
    fn start() -> Self {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let incoming = incoming.with_nodelay(Some(true));
        let address = incoming.local_addr().expect("it is bound").to_string();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tonic::transport::Server::builder().add_service(StockServer::new(Reference::new().0));
        let task = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            server.serve_with_incoming_shutdown(incoming, stopped).await.expect("it stops well");
        });
        Self { address, stop, task }
    }

    async fn stop(self) {
        drop(self.stop);
        soon(self.task).await.expect("no panic");
    }
}

/// A channel that may choose finds out that byway's framing is not spoken, and says so where it is asked why.
#[test]
fn a_channel_of_its_own_choice_takes_grpc_where_nothing_else_is_spoken() {
    story(async {
        let plain = Plain::start();
        for target in [plain.address.clone(), format!("byway://{}", plain.address)] {
            let channel = soon(Channel::connect(&target)).await.expect("a connection");
            let path = channel.path().to_string();
            assert!(path.starts_with("grpc (") && path.ends_with(')'), "{path}");
            served(&EchoClient::new(channel)).await;
            let lazy = Channel::builder(&target).connect_lazy().expect("an address");
            served(&EchoClient::new(lazy.clone())).await;
            assert!(lazy.path().to_string().starts_with("grpc ("), "{}", lazy.path());
        }
        plain.stop().await;
    });
}

/// Whoever asked for gRPC has nothing better to be told of.
#[test]
fn a_channel_that_was_told_to_takes_grpc() {
    story(async {
        let plain = Plain::start();
        let builders = [
            Channel::builder(format!("grpc://{}", plain.address)),
            Channel::builder(plain.address.as_str()).transport(Transport::Grpc),
            Channel::builder(format!("byway://{}", plain.address)).transport(Transport::Grpc),
        ];
        for builder in builders {
            let channel = soon(builder.connect()).await.expect("a connection");
            assert_eq!(channel.path().to_string(), "grpc");
            served(&EchoClient::new(channel)).await;
        }
        plain.stop().await;
    });
}

/// Whoever asked for byway's framing gets no other.
#[test]
fn a_channel_that_was_told_not_to_does_not_take_grpc() {
    story(async {
        let plain = Plain::start();
        let builder = Channel::builder(plain.address.as_str()).transport(Transport::Tcp);
        let error = soon(builder.clone().connect()).await.expect_err("no byway server").to_string();
        assert!(error.contains("does not speak byway's protocol"), "{error}");
        let client = EchoClient::new(builder.connect_lazy().expect("an address"));
        let status = soon(client.unary(text("x"))).await.expect_err("no byway server");
        assert_eq!(status.code(), Code::Unavailable);
        plain.stop().await;
    });
}

/// A stock client over byway's channel over HTTP/2, to either kind of server.
#[test]
fn a_stock_client_calls_by_a_channel_over_grpc() {
    story(async {
        let (plain, own) = (Plain::start(), Running::start().await);
        for address in [plain.address.clone(), own.text()] {
            let channel = Channel::builder(format!("grpc://{address}")).connect();
            let mut client = StockClient::new(soon(channel).await.expect("a connection"));
            let reply = soon(client.unary(text("stock"))).await.expect("a reply");
            assert_eq!(reply.get_ref().text, "stock");
            let requests = tokio_stream::iter([text("a"), text("b")]);
            let replies = soon(client.chat(requests)).await.expect("replies").into_inner();
            let replies = soon(tokio_stream::StreamExt::collect::<Vec<_>>(replies)).await;
            assert_eq!(
                replies.into_iter().map(|reply| reply.expect("no failure").text).collect::<String>(),
                "ab"
            );
        }
        plain.stop().await;
        own.stop().await;
    });
}

#[test]
fn grpc_goes_over_a_unix_socket_too() {
    story(async {
        let path = std::env::temp_dir().join(format!("byway-grpc-{}.sock", std::process::id()));
        let address = Address::Unix(path);
        let server = Running::at(address.clone(), Server::builder()).await;
        let channel = Channel::builder(address).transport(Transport::Grpc).connect();
        let channel = soon(channel).await.expect("a connection");
        assert!(channel.path().to_string().starts_with("grpc"), "{}", channel.path());
        served(&EchoClient::new(channel)).await;
        server.stop().await;
    });
}
