//! Sockets: besides what any hostile driver does, packets that are almost right, while programs of the host come, go,
//! and use half of a connection.

use crate::guest::{DATA, Guest, Part};
use crate::input::Input;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use vmm::virtio::vsock::{GUEST_CID, HOST_CID, HostPorts, Vsock, VsockConfig, VsockHandle};

const RX: usize = 0;
const TX: usize = 1;
const HEADER_LEN: u32 = 44;
const OP_REQUEST: u16 = 1;

/// The only port of the host that the guest can reach.
const HOST_PORT: u32 = 1025;
/// The first port that the host takes for a connection of its own. The guest is told of it; so it may as well guess.
const FIRST_PORT: u32 = 1 << 30;

/// The port for which the driver in the end waits; the attacker's programs use others.
const FRIENDLY_PORT: u32 = 4242;

/// Most programs at a time.
const MAX_PROGRAMS: usize = 16;

/// The host's side: programs that are joined to the guest.
struct Host {
    agent: SocketAddr,
    handle: VsockHandle,
    /// Other ends of the connections that the guest opened.
    opened: mpsc::Receiver<UnixStream>,
    programs: Vec<UnixStream>,
}

/// Attacks the sockets.
///
/// # Panics
/// When there are more connections than the device promises, or a reset does not bring it back.
pub fn run(data: &[u8]) {
    let (agent_listener, agent) = listen();
    let (sender, opened) = mpsc::channel();
    let connector = move || {
        let (ours, theirs) = UnixStream::pair()?;
        sender.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(ours)
    };
    let host_ports = HostPorts::from([(HOST_PORT, Box::new(connector) as _)]);
    let config = VsockConfig { guest_cid: GUEST_CID, agent_listener, host_ports };
    let mut handle = None;
    let mut guest = Guest::new(|io| {
        let device = Vsock::new(config, io).expect("descriptors");
        handle = Some(device.handle());
        Box::new(device)
    });
    let handle = handle.expect("the device was made");
    let mut host = Host { agent, handle, opened, programs: Vec::new() };

    guest.attack(&mut Input::new(data), |guest, input| match input.below(8) {
        0..=2 => send(guest, input),
        3 | 4 => {
            let address = guest.address(input);
            guest.offer(RX, &[(address, input.length(), true)]);
        }
        5 => host.connect(input),
        _ => host.use_program(input),
    });
    assert!(host.handle.connection_count() <= 1024, "connections are capped");

    host.programs.clear();
    guest.reform();
    let _program =
        host.handle.connect(FRIENDLY_PORT).expect("a device that was reset takes connections");
    // Before it come the connections that no driver was told of; there are as many as there were programs, at most.
    let served = (0..300).any(|_| {
        guest.offer(RX, &[(DATA, 4096, true)]);
        guest.notify(RX);
        let header = guest.bytes(DATA, 44);
        header[..16] == [HOST_CID.to_le_bytes(), GUEST_CID.to_le_bytes()].concat()
            && header[20..24] == FRIENDLY_PORT.to_le_bytes()
            && header[30..32] == OP_REQUEST.to_le_bytes()
    });
    assert!(served, "a friendly driver is served");
}

/// A socket in the place of the agent's.
fn listen() -> (UnixListener, SocketAddr) {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let name =
        format!("lilbox-fuzz-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let address = SocketAddr::from_abstract_name(name).expect("a short name");
    (UnixListener::bind_addr(&address).expect("a name that nobody else has"), address)
}

/// Sends a packet whose fields are mostly what a driver would say.
fn send(guest: &mut Guest, input: &mut Input<'_>) {
    let odd = |input: &mut Input<'_>| input.below(16) == 15;
    let mut header = Vec::with_capacity(44);
    header.extend((if odd(input) { input.u64() } else { GUEST_CID }).to_le_bytes());
    header.extend((if odd(input) { input.u64() } else { HOST_CID }).to_le_bytes());
    // The agent's port, and others.
    header.extend((if input.flag() { 1024 } else { u32::from(input.below(8)) }).to_le_bytes());
    let host_port = match input.below(4) {
        0 => HOST_PORT,
        1 if odd(input) => input.u32(),
        _ => FIRST_PORT + u32::from(input.below(32)),
    };
    header.extend(host_port.to_le_bytes());
    let len = input.length();
    header.extend((if odd(input) { input.u32() } else { len }).to_le_bytes());
    header.extend((if odd(input) { input.u16() } else { 1 }).to_le_bytes());
    header.extend(u16::from(input.below(9)).to_le_bytes());
    header.extend(u32::from(input.below(5)).to_le_bytes());
    header.extend((if odd(input) { input.u32() } else { 256 << 10 }).to_le_bytes());
    header.extend((if odd(input) { input.u32() } else { 0 }).to_le_bytes());

    let at = if odd(input) { guest.address(input) } else { DATA };
    guest.put(at, &header);
    let mut parts: Vec<Part> = vec![(at, HEADER_LEN, false)];
    if len > 0 {
        parts.push((guest.address(input), len, false));
    }
    guest.offer(TX, &parts);
    if input.flag() {
        guest.notify(TX);
    }
}

impl Host {
    fn connect(&mut self, input: &mut Input<'_>) {
        if self.programs.len() >= MAX_PROGRAMS {
            return;
        }
        let connected = if input.flag() {
            UnixStream::connect_addr(&self.agent)
        } else {
            self.handle.connect(u32::from(input.below(8)))
        };
        // Refused while the device waits for a reset.
        self.programs.extend(connected);
    }

    /// What is tried may fail: the other end may be closed, full or empty.
    fn use_program(&mut self, input: &mut Input<'_>) {
        self.programs.extend(self.opened.try_iter());
        let index = usize::from(input.u8()) % self.programs.len().max(1);
        let Some(mut program) = self.programs.get(index) else { return };
        program.set_nonblocking(true).expect("a socket");
        match input.below(5) {
            0 => drop(program.write(&[0x5a; 5000])),
            1 => drop(program.read(&mut [0; 5000])),
            2 => drop(program.shutdown(Shutdown::Write)),
            3 => drop(program.shutdown(Shutdown::Read)),
            _ => drop(self.programs.swap_remove(index)),
        }
    }
}
