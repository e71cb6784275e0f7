//! The smallest byway service, and a client for it.
//!
//! `greeter` serves on a free port and calls itself; `greeter serve ADDRESS` and `greeter greet ADDRESS NAME` do either.

use byway::{Channel, Request, Response, Server, Status};

mod pb {
    byway::include_proto!("greeter.v1");
}

use pb::greeter_client::GreeterClient;
use pb::greeter_server::{Greeter, GreeterServer};
use pb::{GreetReply, GreetRequest};

struct Polite;

#[byway::async_trait]
impl Greeter for Polite {
    async fn greet(&self, request: Request<GreetRequest>) -> Result<Response<GreetReply>, Status> {
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(Status::invalid_argument("the name is empty"));
        }
        Ok(Response::new(GreetReply { text: format!("Hello, {name}!") }))
    }
}

async fn serve(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    Ok(Server::builder().add_service(GreeterServer::new(Polite)).serve_with_shutdown(address, stop).await?)
}

async fn greet(address: &str, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let channel = Channel::connect(address).await?;
    let client = GreeterClient::new(channel.clone());
    let reply = client.greet(GreetRequest { name: name.to_owned() }).await?.into_inner();
    println!("{} (over {})", reply.text, channel.path());
    Ok(())
}

async fn demo() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder().add_service(GreeterServer::new(Polite)).bind("127.0.0.1:0").await?;
    let address = server.listening().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve_with_shutdown(async {
        let _ = stopped.await;
    }));
    greet(&address, "world").await?;
    drop(stop);
    Ok(serving.await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demo().await,
        ["serve", address] => serve(address).await,
        ["greet", address, name] => greet(address, name).await,
        _ => Err("usage: greeter [serve ADDRESS | greet ADDRESS NAME]".into()),
    }
}
