//! Raw ping-pong latency and WRITE bandwidth of the verbs layer, measured as perftest measures them.
//!
//! ```text
//! perf serve [PORT]                                   waits for one client, serves it, ends
//! perf send_lat HOST[:PORT] SIZE ITERATIONS           prints: send_lat SIZE <median half round trip in µs>
//! perf write_bw HOST[:PORT] SIZE ITERATIONS           prints: write_bw SIZE <MiB/s>
//! ```
//!
//! Both ends poll. A bandwidth client keeps 128 writes outstanding and has every hundredth reported.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use byway_rdma::memory::{Buffer, Frozen, Memory};
use byway_rdma::nic::{
    Completion, Endpoint, Kind, Mtu, Nic, Operation, Payload, Piece, QueuePairId, QueuePairSpec, Receive,
    RecvQueue, RemoteAccess, RemoteSlice, Request, WorkId,
};
use byway_rdma::verbs::{NicOptions, VerbsNic};

const PORT: u16 = 18600;
const DEPTH: u32 = 128;
const SIGNAL_EVERY: u64 = 100;
const RECEIVES: usize = 64;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["serve"] => serve(PORT),
        ["serve", port] => serve(port.parse()?),
        [test @ ("send_lat" | "write_bw"), host, size, iterations] => {
            measure(test, host, size.parse()?, iterations.parse()?)
        }
        _ => Err("usage: perf serve [PORT] | send_lat HOST SIZE N | write_bw HOST SIZE N".into()),
    }
}

/// What a client asks for: which test, the size and the number of iterations.
struct Plan {
    is_latency: bool,
    size: u32,
    iterations: u64,
}

fn measure(test: &str, host: &str, size: u32, iterations: u64) -> Outcome<()> {
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:{PORT}") };
    let plan = Plan { is_latency: test == "send_lat", size, iterations };
    let mut control = TcpStream::connect(address)?;
    control.write_all(&u64::from(plan.is_latency).to_be_bytes())?;
    control.write_all(&u64::from(size).to_be_bytes())?;
    control.write_all(&iterations.to_be_bytes())?;
    let mut end = End::connect(&mut control)?;
    if plan.is_latency {
        let mut halves = end.ping(&plan)?;
        halves.sort_by(f64::total_cmp);
        println!("send_lat {size} {:.2}", halves[halves.len() / 2]);
    } else {
        let target = receive_slice(&mut control)?;
        println!("write_bw {size} {:.2}", end.write(&plan, target)?);
    }
    // The server keeps its memory until we are done.
    control.write_all(b"!")?;
    Ok(())
}

fn serve(port: u16) -> Outcome<()> {
    let (mut control, _) = TcpListener::bind(("0.0.0.0", port))?.accept()?;
    let plan = Plan {
        is_latency: receive_number(&mut control)? == 1,
        size: u32::try_from(receive_number(&mut control)?)?,
        iterations: receive_number(&mut control)?,
    };
    let mut end = End::connect(&mut control)?;
    let window = if plan.is_latency {
        end.pong(&plan)?;
        None
    } else {
        let buffer = end.buffer(plan.size)?;
        let (window, slice) = end.grant(buffer)?;
        control.write_all(&slice.address.to_be_bytes())?;
        control.write_all(&slice.len.to_be_bytes())?;
        control.write_all(&u64::from(slice.key).to_be_bytes())?;
        Some(window)
    };
    control.read_exact(&mut [0])?;
    if let Some(window) = window {
        end.nic.free_window(window)?;
    }
    Ok(())
}

fn receive_number(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

fn receive_slice(from: &mut impl Read) -> Outcome<RemoteSlice> {
    Ok(RemoteSlice {
        address: receive_number(from)?,
        len: receive_number(from)?,
        key: u32::try_from(receive_number(from)?)?,
    })
}

/// One end of the connection.
struct End {
    nic: VerbsNic,
    qp: QueuePairId,
    inbox: Vec<Completion>,
}

impl End {
    fn connect(control: &mut TcpStream) -> Outcome<Self> {
        control.set_nodelay(true)?;
        let options = NicOptions { completions: 1024, shared_receives: 0, ..NicOptions::default() };
        let mut nic = VerbsNic::open(&options)?;
        let spec = QueuePairSpec {
            send_depth: DEPTH,
            recv_depth: Some(RECEIVES as u32),
            ..QueuePairSpec::default()
        };
        let qp = nic.create_queue_pair(&spec)?;
        let mut end = Self { nic, qp, inbox: Vec::with_capacity(256) };
        let buffers = end.buffers(RECEIVES, 4096)?;
        let receive = |buffer| Receive { work: WorkId(0), buffer };
        end.nic.post_recv(RecvQueue::Own(qp), &mut buffers.into_iter().map(receive).collect())?;
        send_endpoint(control, &end.nic.endpoint(qp)?)?;
        let peer = receive_endpoint(control)?;
        end.nic.connect(qp, &peer)?;
        // Nobody sends before both are ready.
        control.write_all(b"!")?;
        control.read_exact(&mut [0])?;
        Ok(end)
    }

    fn buffers(&mut self, count: usize, size: usize) -> Outcome<Vec<Buffer>> {
        let slab = self.nic.register(Memory::allocate(count * size)?).map_err(|refused| refused.error)?;
        Ok(slab.into_buffers(size))
    }

    fn buffer(&mut self, size: u32) -> Outcome<Buffer> {
        let memory = Memory::allocate(size as usize)?;
        Ok(self.nic.register(memory).map_err(|refused| refused.error)?.into_buffer())
    }

    fn grant(&mut self, buffer: Buffer) -> Outcome<(byway_rdma::nic::WindowId, RemoteSlice)> {
        let window = self.nic.allocate_window()?;
        let bound = self.nic.bind(self.qp, window, WorkId(1), buffer, RemoteAccess::Write);
        let slice = bound.map_err(|refused| refused.error)?;
        while self.poll()? == 0 {}
        self.inbox.clear();
        Ok((window, slice))
    }

    fn poll(&mut self) -> Outcome<usize> {
        let count = self.nic.poll(&mut self.inbox, 16)?;
        let failed = self.inbox.iter().find_map(|completion| completion.outcome.err());
        match failed {
            Some(failure) => Err(failure.to_string().into()),
            None => Ok(count),
        }
    }

    /// A message of zeroes: inside the request when it fits, as perftest does, otherwise from memory.
    fn message(&mut self, size: u32) -> Outcome<Source> {
        if size <= self.nic.inline_max(self.qp)? {
            return Ok(Source::Inline(vec![0; size as usize]));
        }
        let mut buffer = self.buffer(size)?;
        buffer.set_filled(size as usize);
        Ok(Source::Registered(buffer.freeze()))
    }

    fn send<'a>(&mut self, source: &'a Source, batch: &mut Vec<Request<'a>>) -> Outcome<()> {
        let operation = Operation::Send { immediate: None };
        let payload = match source {
            Source::Inline(bytes) => Payload::Inline(bytes),
            Source::Registered(view) => Payload::One(Piece::Shared(view.clone())),
        };
        batch.push(Request::unsignaled(WorkId(2), operation, payload));
        Ok(self.nic.post(self.qp, batch)?)
    }

    /// Waits for the peer's message; its buffer is then in `batch`.
    fn receive(&mut self, batch: &mut Vec<Receive>) -> Outcome<()> {
        while batch.is_empty() {
            self.poll()?;
            for completion in self.inbox.drain(..) {
                if let (Kind::Receive, Payload::One(Piece::Owned(buffer))) =
                    (completion.kind, completion.payload)
                {
                    batch.push(Receive { work: WorkId(0), buffer });
                }
            }
        }
        Ok(())
    }

    /// Posts the buffer of the last message again. Many others are posted, so this waits until after the answer.
    fn repost(&mut self, batch: &mut Vec<Receive>) -> Outcome<()> {
        Ok(self.nic.post_recv(RecvQueue::Own(self.qp), batch)?)
    }

    fn ping(&mut self, plan: &Plan) -> Outcome<Vec<f64>> {
        let source = self.message(plan.size)?;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        let mut halves = Vec::with_capacity(plan.iterations as usize);
        // One reading of the clock a round, as in perftest.
        let mut before = Instant::now();
        for _ in 0..plan.iterations {
            self.send(&source, &mut sends)?;
            self.repost(&mut receives)?;
            self.receive(&mut receives)?;
            let now = Instant::now();
            halves.push((now - before).as_secs_f64() * 1e6 / 2.0);
            before = now;
        }
        Ok(halves)
    }

    fn pong(&mut self, plan: &Plan) -> Outcome<()> {
        let source = self.message(plan.size)?;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for _ in 0..plan.iterations {
            self.receive(&mut receives)?;
            self.send(&source, &mut sends)?;
            self.repost(&mut receives)?;
        }
        Ok(())
    }

    fn write(&mut self, plan: &Plan, to: RemoteSlice) -> Outcome<f64> {
        let mut buffer = self.buffer(plan.size)?;
        buffer.set_filled(plan.size as usize);
        let view: Frozen = buffer.freeze();
        let operation = Operation::Write { to, immediate: None };
        let mut batch = Vec::new();
        let (mut posted, mut done) = (0, 0);
        let start = Instant::now();
        while done < plan.iterations {
            while posted < plan.iterations && posted - done < u64::from(DEPTH) {
                posted += 1;
                let payload = Payload::One(Piece::Shared(view.clone()));
                let mut request = Request::unsignaled(WorkId(posted), operation, payload);
                request.signaled = posted % SIGNAL_EVERY == 0 || posted == plan.iterations;
                batch.push(request);
                self.nic.post(self.qp, &mut batch)?;
            }
            done += self.poll()? as u64;
            self.inbox.clear();
        }
        let mib = (plan.iterations * u64::from(plan.size)) as f64 / f64::from(1 << 20);
        Ok(mib / start.elapsed().as_secs_f64())
    }
}

/// What a latency test sends.
enum Source {
    Inline(Vec<u8>),
    Registered(Frozen),
}

fn send_endpoint(to: &mut impl Write, endpoint: &Endpoint) -> io::Result<()> {
    to.write_all(&endpoint.gid)?;
    for number in [u32::from(endpoint.lid), endpoint.number, endpoint.first_psn, endpoint.mtu.bytes()] {
        to.write_all(&u64::from(number).to_be_bytes())?;
    }
    Ok(())
}

fn receive_endpoint(from: &mut impl Read) -> Outcome<Endpoint> {
    let mut gid = [0; 16];
    from.read_exact(&mut gid)?;
    Ok(Endpoint {
        gid,
        lid: u16::try_from(receive_number(from)?)?,
        number: u32::try_from(receive_number(from)?)?,
        first_psn: u32::try_from(receive_number(from)?)?,
        mtu: Mtu::at_most(u32::try_from(receive_number(from)?)?).ok_or("no such MTU")?,
    })
}
