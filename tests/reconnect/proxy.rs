//! A network that can be held up, frozen, cut and pointed elsewhere.

use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::harness::{Running, soon};

/// Whether connections are carried on from the beginning.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    Shut,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Flowing,
    /// Nothing moves, nothing is closed.
    Frozen,
    /// Every connection that there was is reset.
    Cut,
}

/// Accepts connections and carries them to a server.
pub(crate) struct Proxy {
    address: String,
    target: Arc<Mutex<String>>,
    connections: watch::Receiver<usize>,
    gate: watch::Sender<Gate>,
    state: watch::Sender<State>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(server: &Running, gate: Gate) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let target = Arc::new(Mutex::new(server.text()));
        let (count, connections) = watch::channel(0);
        let (gate, (state, states)) = (watch::Sender::new(gate), watch::channel(State::Flowing));
        let (target_of_each, opened) = (Arc::clone(&target), gate.subscribe());
        let task = tokio::spawn(async move {
            let mut carried = JoinSet::new();
            loop {
                let (near, _) = listener.accept().await.expect("a connection");
                count.send_modify(|count| *count += 1);
                let target = target_of_each.lock().expect("nobody panics").clone();
                carried.spawn(carry(near, target, opened.clone(), states.clone()));
            }
        });
        Self { address, target, connections, gate, state, task }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Connections that were accepted.
    pub(crate) fn connections(&self) -> usize {
        *self.connections.borrow()
    }

    /// Waits until there were `count` connections.
    pub(crate) async fn accepted(&self, count: usize) {
        let mut connections = self.connections.clone();
        soon(connections.wait_for(|accepted| *accepted >= count)).await.expect("it accepts");
    }

    /// Carries on what waits at the gate.
    pub(crate) fn open(&self) {
        self.gate.send_replace(Gate::Open);
    }

    /// From now on connections that come are accepted, and nothing else.
    pub(crate) fn shut(&self) {
        self.gate.send_replace(Gate::Shut);
    }

    /// Sends later connections to another server.
    pub(crate) fn point_to(&self, server: &Running) {
        *self.target.lock().expect("nobody panics") = server.text();
    }

    pub(crate) fn freeze(&self) {
        self.state.send_replace(State::Frozen);
    }

    pub(crate) fn cut(&self) {
        self.state.send_replace(State::Cut);
    }

    pub(crate) fn heal(&self) {
        self.state.send_replace(State::Flowing);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(
    mut near: TcpStream,
    target: String,
    mut gate: watch::Receiver<Gate>,
    mut state: watch::Receiver<State>,
) {
    if gate.wait_for(|gate| *gate == Gate::Open).await.is_err() {
        return;
    }
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("a TCP socket");
    }
    tokio::select! {
        biased;
        _ = state.wait_for(|state| *state != State::Flowing) => {}
        _ = copy_bidirectional(&mut near, &mut far) => return,
    }
    let _ = state.wait_for(|state| *state != State::Frozen).await;
    for stream in [&near, &far] {
        let _ = stream.set_zero_linger();
    }
}
