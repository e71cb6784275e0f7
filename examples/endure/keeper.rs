//! Keeps a server running beside itself, and does to it what the other machine orders.
//!
//! Owns the server's process and what is blocked on the interface. An order is one line on a connection of its own to the
//! next port; it is acknowledged before it is carried out, since it may cut the connection. Invariant: every order but a
//! kill undoes itself after its time, whatever can still be reached then. Never: judges.

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::Failure;
use crate::rounds::{Fault, LEAD};
use crate::vitals::Vitals;

const INTERFACE: &str = "rdma0";

/// Where orders are taken for the server at `address`.
pub(crate) fn control(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port() + 1)
}

/// Obeys until it is killed.
pub(crate) async fn keep(address: SocketAddr, windows: bool) -> Result<(), Failure> {
    let listener = TcpListener::bind(control(address)).await?;
    let mut keeper = Keeper { address, windows, server: start(address, windows)? };
    loop {
        let (stream, _) = listener.accept().await?;
        if let Err(error) = keeper.obey(stream).await {
            println!("keeper: {error}");
        }
    }
}

/// Gives an order; returns the answer.
pub(crate) async fn order(address: SocketAddr, order: &str) -> Result<String, Failure> {
    let exchange = async {
        let mut stream = TcpStream::connect(control(address)).await?;
        stream.write_all(format!("{order}\n").as_bytes()).await?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).await?;
        Ok::<_, Failure>(answer.trim().to_owned())
    };
    tokio::time::timeout(Duration::from_secs(10), exchange).await.map_err(|_| "the keeper does not answer")?
}

struct Keeper {
    address: SocketAddr,
    windows: bool,
    server: Child,
}

fn start(address: SocketAddr, windows: bool) -> Result<Child, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["serve", &address.to_string(), "--windows", if windows { "yes" } else { "no" }]);
    Ok(command.spawn()?)
}

impl Keeper {
    async fn obey(&mut self, stream: TcpStream) -> Result<(), Failure> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let fault = match line.trim() {
            "vitals" => {
                let answer = match self.server.try_wait()? {
                    None => Vitals::read(self.server.id())?.encode(),
                    Some(status) => format!("the server ended by itself: {status}"),
                };
                return Ok(stream.write_all(format!("{answer}\n").as_bytes()).await?);
            }
            order => order.parse::<Fault>()?,
        };
        stream.write_all(b"ok\n").await?;
        drop(stream);
        tokio::time::sleep(LEAD).await;
        self.carry_out(fault).await
    }

    async fn carry_out(&mut self, fault: Fault) -> Result<(), Failure> {
        match fault {
            Fault::Spare => {}
            Fault::Kill => self.replace()?,
            Fault::Freeze | Fault::Bury => {
                self.signal("STOP")?;
                tokio::time::sleep(fault.lasts()).await;
                if fault == Fault::Freeze { self.signal("CONT")? } else { self.replace()? }
            }
            Fault::Down => {
                run("ip", &format!("link set {INTERFACE} down"))?;
                tokio::time::sleep(fault.lasts()).await;
                run("ip", &format!("link set {INTERFACE} up"))?;
            }
            Fault::Lose => drop_arriving("protocol all u32 match u32 0 0", fault.lasts()).await?,
            Fault::Block => {
                let roce = "protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff";
                drop_arriving(roce, fault.lasts()).await?;
            }
        }
        Ok(())
    }

    fn replace(&mut self) -> Result<(), Failure> {
        self.server.kill()?;
        self.server.wait()?;
        self.server = start(self.address, self.windows)?;
        Ok(())
    }

    fn signal(&self, signal: &str) -> Result<(), Failure> {
        run("kill", &format!("-{signal} {}", self.server.id()))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.server.kill();
    }
}

/// Drops what arrives here and matches, for a while.
async fn drop_arriving(filter: &str, lasts: Duration) -> Result<(), Failure> {
    run("tc", &format!("qdisc add dev {INTERFACE} ingress"))?;
    let added = run("tc", &format!("filter add dev {INTERFACE} parent ffff: {filter} action drop"));
    tokio::time::sleep(lasts).await;
    run("tc", &format!("qdisc del dev {INTERFACE} ingress"))?;
    added
}

fn run(program: &str, args: &str) -> Result<(), Failure> {
    let status = Command::new(program).args(args.split(' ')).status()?;
    if status.success() { Ok(()) } else { Err(format!("{program} {args}: {status}").into()) }
}
