//! A proxy of HTTP/2 that says things in the server's name.
//!
//! Owns [`Tamper`]: passes frames on, and between them tells the client new settings or that the server goes away, or cuts
//! the connection. Invariant: it says nothing that a server may not say. Never: looks into a header block.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;

/// A proxy on a free port.
pub(crate) struct Tamper {
    pub(crate) address: String,
    task: JoinHandle<()>,
}

impl Drop for Tamper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What both directions of a connection know.
#[derive(Default)]
struct Shared {
    /// Settings of the proxy's own that the client has not acknowledged.
    own: AtomicUsize,
    /// The client has acknowledged the server's settings.
    greeted: AtomicBool,
    /// The last stream that the client has begun.
    last: AtomicU32,
    /// The last stream that is passed on.
    up_to: AtomicU32,
}

impl Tamper {
    /// Before `server`. One in `rarity` frames of the server is followed by something of the proxy's own.
    pub(crate) async fn start(server: String, seed: u64, rarity: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let task = tokio::spawn(async move {
            let mut seeds = fastrand::Rng::with_seed(seed);
            loop {
                let (client, _) = listener.accept().await.expect("a connection");
                let rng = seeds.fork();
                let server = server.clone();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let shared = Arc::new(Shared { up_to: AtomicU32::new(u32::MAX), ..Shared::default() });
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    let up = tokio::spawn(upwards(from_client, to_server, Arc::clone(&shared)));
                    downwards(from_server, to_client, &shared, rng, rarity).await;
                    up.abort();
                });
            }
        });
        Self { address, task }
    }
}

async fn upwards(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: Arc<Shared>) -> Option<()> {
    let mut preface = [0; 24];
    from.read_exact(&mut preface).await.ok()?;
    to.write_all(&preface).await.ok()?;
    loop {
        let frame = frame(&mut from).await?;
        let (kind, flags, stream) = (frame[3], frame[4], stream(&frame));
        let acknowledges = kind == SETTINGS && flags & ACK != 0;
        if acknowledges && shared.greeted.swap(true, Ordering::SeqCst) && shared.is_of_own() {
            continue;
        }
        if kind == HEADERS {
            shared.last.fetch_max(stream, Ordering::SeqCst);
        }
        if stream <= shared.up_to.load(Ordering::SeqCst) {
            to.write_all(&frame).await.ok()?;
        }
    }
}

impl Shared {
    /// Whether an acknowledgement is of settings that the server knows nothing of.
    fn is_of_own(&self) -> bool {
        self.own.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |own| own.checked_sub(1)).is_ok()
    }
}

async fn downwards(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    mut rng: fastrand::Rng,
    rarity: u32,
) -> Option<()> {
    loop {
        let next = frame(&mut from).await?;
        to.write_all(&next).await.ok()?;
        // The server's settings are acknowledged first, so that acknowledgements are told apart by their order.
        if !shared.greeted.load(Ordering::SeqCst) || rng.u32(0..rarity) > 0 {
            continue;
        }
        match rng.u32(0..100) {
            0 => return None,
            1..=3 => {
                let last = shared.last.load(Ordering::SeqCst);
                shared.up_to.fetch_min(last, Ordering::SeqCst);
                let last = shared.up_to.load(Ordering::SeqCst);
                let code = rng.u32(0..2) * 11;
                let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
                to.write_all(&built(GOAWAY, 0, &payload)).await.ok()?;
            }
            _ => {
                shared.own.fetch_add(1, Ordering::SeqCst);
                let calls = [0, 1, 1, 2, 3, 100][rng.usize(0..6)];
                let mut payload = vec![0, 3];
                payload.extend(u32::to_be_bytes(calls));
                to.write_all(&built(SETTINGS, 0, &payload)).await.ok()?;
                if calls == 0 {
                    tokio::task::yield_now().await;
                    shared.own.fetch_add(1, Ordering::SeqCst);
                    to.write_all(&built(SETTINGS, 0, &[0, 3, 0, 0, 0, 1])).await.ok()?;
                }
            }
        }
    }
}

fn built(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags, 0, 0, 0, 0]);
    bytes.extend(payload);
    bytes
}

fn stream(frame: &[u8]) -> u32 {
    u32::from_be_bytes([frame[5] & 0x7f, frame[6], frame[7], frame[8]])
}

/// The next frame with its header.
async fn frame(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut header = [0; 9];
    from.read_exact(&mut header).await.ok()?;
    let len = usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
    let mut frame = header.to_vec();
    frame.resize(9 + len, 0);
    from.read_exact(&mut frame[9..]).await.ok()?;
    Some(frame)
}
