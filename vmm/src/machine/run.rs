//! The threads of the processors: run, serve the exit, run again.

use super::notice::{Notice, Notifier};
use crate::arch::{Registers, VcpuSetup};
use crate::bus::Bus;
use crate::hv::{self, Exit, Kick, Vcpu, Vm};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

/// A processor's thread calls devices' register code and nothing deep.
const STACK_BYTES: usize = 128 << 10;

/// How a processor's thread ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was told to stop.
    Stopped,
    /// The guest ended the machine: reset, power-off or triple fault.
    Shutdown,
    /// It cannot go on.
    Failed(String),
}

/// Processors that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// No thread.
    #[error("cannot start the thread of vCPU {id}")]
    Thread {
        /// Which.
        id: u8,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The hypervisor refuses.
    #[error("cannot make vCPU {id}")]
    Make {
        /// Which.
        id: u8,
        /// The hypervisor's error.
        #[source]
        source: hv::Error,
    },
    /// The thread ended before it had said anything.
    #[error("the thread of vCPU {id} ended early")]
    Ended {
        /// Which.
        id: u8,
    },
}

/// The last exit of a processor, written by its thread and read when a start has failed. Two plain stores per exit; a
/// reader may see the kind of one exit with the address of the next, which is good enough for a message.
#[derive(Debug, Default)]
pub struct Trace {
    exits: AtomicU64,
    kind: AtomicU8,
    address: AtomicU64,
}

impl Trace {
    fn record(&self, exit: &Exit<'_>) {
        let (kind, address) = match exit {
            Exit::MmioRead { address, .. } => (1, *address),
            Exit::MmioWrite { address, .. } => (2, *address),
            Exit::IoIn { port, .. } => (3, u64::from(*port)),
            Exit::IoOut { port, .. } => (4, u64::from(*port)),
            Exit::Halt => (5, 0),
            Exit::Shutdown => (6, 0),
            Exit::Interrupted => (7, 0),
            Exit::Failed(_) => (8, 0),
        };
        self.kind.store(kind, Ordering::Relaxed);
        self.address.store(address, Ordering::Relaxed);
        // Only this thread writes: no need for an atomic addition.
        self.exits.store(self.exits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Number of exits.
    #[must_use]
    pub fn exits(&self) -> u64 {
        self.exits.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.load(Ordering::Relaxed);
        match self.kind.load(Ordering::Relaxed) {
            0 => write!(f, "never left the guest"),
            1 => write!(f, "read at {address:#x}"),
            2 => write!(f, "write at {address:#x}"),
            3 => write!(f, "read of port {address:#x}"),
            4 => write!(f, "write to port {address:#x}"),
            5 => write!(f, "halt"),
            6 => write!(f, "shutdown (reset or triple fault)"),
            7 => write!(f, "interrupted"),
            _ => write!(f, "failure"),
        }?;
        write!(f, " (exit {})", self.exits())
    }
}

/// What a processor's thread is told once the machine is complete.
struct Go {
    bus: Arc<Bus>,
    entry: Option<Registers>,
}

struct Processor {
    kicker: Arc<dyn Kick>,
    trace: Arc<Trace>,
    go: Sender<Go>,
    thread: JoinHandle<()>,
}

/// The processors of a machine: made, then started, then stopped.
pub struct Processors {
    all: Vec<Processor>,
    stop: Arc<AtomicBool>,
}

/// What a processor's thread does between its last set-up and the guest's first instruction: it confines itself.
type BeforeGuest = Box<dyn FnOnce() -> io::Result<()> + Send>;

impl Processors {
    /// Starts a thread per setup, on which the processor is made; they then wait for [`PendingProcessors::start`]. So making
    /// processors and loading the kernel go on at the same time.
    ///
    /// # Errors
    /// [`SpawnError`], when all threads have ended again or are about to.
    pub fn make<V: Vm>(
        vm: &Arc<V>,
        setups: Vec<VcpuSetup>,
        notifier: &Notifier,
        before_guest: impl FnOnce() -> io::Result<()> + Clone + Send + 'static,
    ) -> Result<PendingProcessors, SpawnError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut pending = Vec::with_capacity(setups.len());
        for (id, setup) in (0..=u8::MAX).zip(setups) {
            let (go, told) = mpsc::channel();
            let (made, making) = mpsc::channel();
            let trace = Arc::new(Trace::default());
            let processor_thread = ProcessorThread {
                id,
                vm: Arc::clone(vm),
                notifier: notifier.clone(),
                stop: Arc::clone(&stop),
                trace: Arc::clone(&trace),
                before_guest: Box::new(before_guest.clone()),
            };
            let thread = thread::Builder::new()
                .name(format!("vcpu{id}"))
                .stack_size(STACK_BYTES)
                .spawn(move || processor_thread.main(&setup, &made, &told))
                .map_err(|source| SpawnError::Thread { id, source })?;
            pending.push(Pending { id, trace, go, making, thread });
        }
        Ok(PendingProcessors { pending, stop })
    }

    /// Exits of all processors so far.
    #[must_use]
    pub fn exits(&self) -> u64 {
        self.all.iter().map(|processor| processor.trace.exits()).sum()
    }

    /// The last exit of each, in words.
    #[must_use]
    pub fn last_exits(&self) -> String {
        let one = |(id, processor): (usize, &Processor)| format!("vCPU {id}: {}", processor.trace);
        self.all.iter().enumerate().map(one).collect::<Vec<_>>().join("; ")
    }

    /// Takes every processor out of the guest and waits for its thread.
    ///
    /// Their threads never wait for anything but the guest and short locks, so this is quick.
    pub fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        for processor in &self.all {
            processor.kicker.kick();
        }
        for processor in self.all {
            drop(processor.go);
            if processor.thread.join().is_err() {
                log::error!("a vCPU's thread has panicked");
            }
        }
    }
}

struct Pending {
    id: u8,
    trace: Arc<Trace>,
    go: Sender<Go>,
    making: Receiver<hv::Result<Arc<dyn Kick>>>,
    thread: JoinHandle<()>,
}

/// Processors whose threads have been started.
pub struct PendingProcessors {
    pending: Vec<Pending>,
    stop: Arc<AtomicBool>,
}

impl PendingProcessors {
    /// Waits until all are made, then lets them run; the first one boots.
    ///
    /// # Errors
    /// [`SpawnError`] if one cannot be made.
    pub fn start(self, bus: &Arc<Bus>, entry: Registers) -> Result<Processors, SpawnError> {
        let mut all = Vec::with_capacity(self.pending.len());
        for Pending { id, trace, go, making, thread } in self.pending {
            let kicker = match making.recv() {
                Ok(Ok(kicker)) => kicker,
                Ok(Err(source)) => return Err(SpawnError::Make { id, source }),
                Err(mpsc::RecvError) => return Err(SpawnError::Ended { id }),
            };
            all.push(Processor { kicker, trace, go, thread });
        }
        let mut entry = Some(entry);
        for (processor, id) in all.iter().zip(0..) {
            let go = Go { bus: Arc::clone(bus), entry: entry.take() };
            processor.go.send(go).map_err(|_| SpawnError::Ended { id })?;
        }
        Ok(Processors { all, stop: self.stop })
    }
}

struct ProcessorThread<V: Vm> {
    id: u8,
    vm: Arc<V>,
    notifier: Notifier,
    stop: Arc<AtomicBool>,
    trace: Arc<Trace>,
    before_guest: BeforeGuest,
}

impl<V: Vm> ProcessorThread<V> {
    fn main(
        self,
        setup: &VcpuSetup,
        made: &Sender<hv::Result<Arc<dyn Kick>>>,
        told: &Receiver<Go>,
    ) {
        let mut vcpu = match self.make(setup) {
            Ok(vcpu) => vcpu,
            Err(error) => {
                // Nobody listens any more if another processor has failed before.
                let _ended = made.send(Err(error));
                return;
            }
        };
        if made.send(Ok(vcpu.kicker())).is_err() {
            return;
        }
        // The builder gives up by dropping its end.
        let Ok(go) = told.recv() else { return };
        let (id, notifier) = (self.id, self.notifier.clone());
        let outcome = self.enter(&mut vcpu, &go);
        log::debug!("vCPU {id} ended: {outcome:?}");
        notifier.send(Notice::ProcessorEnded { id, outcome });
    }

    fn make(&self, setup: &VcpuSetup) -> hv::Result<V::Vcpu> {
        let mut vcpu = self.vm.create_vcpu(self.id)?;
        vcpu.set_up(setup)?;
        Ok(vcpu)
    }

    fn enter(self, vcpu: &mut V::Vcpu, go: &Go) -> Outcome {
        if let Some(registers) = &go.entry
            && let Err(error) = vcpu.set_entry(registers)
        {
            return Outcome::Failed(crate::launch::chain(&error));
        }
        if let Err(error) = (self.before_guest)() {
            return Outcome::Failed(format!(
                "cannot confine the thread of vCPU {}: {error}",
                self.id
            ));
        }
        run(vcpu, &go.bus, &self.stop, &self.trace)
    }
}

/// Runs a processor until it ends or is told to stop.
pub fn run(vcpu: &mut impl Vcpu, bus: &Bus, stop: &AtomicBool, trace: &Trace) -> Outcome {
    while !stop.load(Ordering::SeqCst) {
        let exit = match vcpu.run() {
            Ok(exit) => exit,
            Err(error) => return Outcome::Failed(crate::launch::chain(&error)),
        };
        trace.record(&exit);
        match exit {
            Exit::MmioRead { address, data } => bus.read_mmio(address, data),
            Exit::MmioWrite { address, data } => bus.write_mmio(address, data),
            Exit::IoIn { port, data } => bus.read_port(port, data),
            Exit::IoOut { port, data } => bus.write_port(port, data),
            // A kick, or a processor that woke up and found nothing to do.
            Exit::Interrupted | Exit::Halt => {}
            Exit::Shutdown => return Outcome::Shutdown,
            Exit::Failed(reason) => return Outcome::Failed(reason),
        }
    }
    Outcome::Stopped
}

#[cfg(test)]
mod tests {
    use super::super::notice;
    use super::*;
    use crate::bus::BusDevice;
    use crate::hv::Hypervisor;
    use crate::hv::fake::{Fake, Step};
    use std::sync::{Mutex, PoisonError};

    struct Register(Arc<Mutex<Vec<u8>>>);

    impl BusDevice for Register {
        fn read(&mut self, _: u64, data: &mut [u8]) {
            data.fill(0x2a);
        }
        fn write(&mut self, _: u64, data: &[u8]) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(data);
        }
    }

    fn play(scripts: Vec<Vec<Step>>) -> (Fake, Vec<Outcome>, Vec<u8>) {
        let count = scripts.len();
        let fake = Fake::new(scripts);
        let written = Arc::new(Mutex::new(Vec::new()));
        let mut bus = Bus::default();
        bus.insert_mmio(0x1000, 16, Box::new(Register(Arc::clone(&written)))).unwrap();
        bus.insert_ports(0x80, 1, Box::new(Register(Arc::clone(&written)))).unwrap();
        let (notifier, notices) = notice::channel().unwrap();
        let setups = vec![VcpuSetup { cpuid: Vec::new(), msrs: Arc::new([]) }; count];
        let vm = Arc::new(fake.create_vm().unwrap());
        let pending = Processors::make(&vm, setups, &notifier, || Ok(())).unwrap();
        let entry = crate::arch::x86_64::registers::for_entry(0);
        let processors = pending.start(&Arc::new(bus), entry).unwrap();
        let mut outcomes = Vec::new();
        while outcomes.is_empty() {
            rustix::event::poll(
                &mut [rustix::event::PollFd::new(&notices, rustix::event::PollFlags::IN)],
                None,
            )
            .unwrap();
            outcomes.extend(notices.take().into_iter().map(|notice| match notice {
                Notice::ProcessorEnded { outcome, .. } => outcome,
                Notice::GuestCalls(_) => panic!("no guest here"),
            }));
        }
        processors.stop();
        outcomes.extend(notices.take().into_iter().filter_map(|notice| match notice {
            Notice::ProcessorEnded { outcome, .. } => Some(outcome),
            Notice::GuestCalls(_) => None,
        }));
        let written = written.lock().unwrap().clone();
        (fake, outcomes, written)
    }

    #[test]
    fn exits_reach_devices_and_answers_reach_the_guest() {
        let (fake, outcomes, written) = play(vec![vec![
            Step::MmioRead(0x1004, 4),
            Step::MmioWrite(0x1000, vec![1, 2]),
            Step::IoOut(0x80, vec![3]),
            Step::IoIn(0x80, 1),
            Step::IoIn(0x60, 2),
            Step::MmioRead(0x9999, 8),
            Step::Halt,
            Step::Shutdown,
        ]]);
        assert_eq!(outcomes, [Outcome::Shutdown]);
        assert_eq!(written, [1, 2, 3]);
        assert_eq!(fake.answers(), [vec![0x2a; 4], vec![0x2a], vec![0xff; 2], vec![0xff; 8]]);
    }

    #[test]
    fn when_one_processor_ends_the_machine_the_others_are_taken_out_of_the_guest() {
        let (_, outcomes, _) =
            play(vec![vec![Step::Shutdown], vec![], vec![Step::Wait], vec![Step::Halt]]);
        assert_eq!(outcomes[0], Outcome::Shutdown);
        assert_eq!(outcomes[1..], [Outcome::Stopped, Outcome::Stopped, Outcome::Stopped]);
    }

    #[test]
    fn failures_carry_their_reason() {
        let (_, outcomes, _) =
            play(vec![vec![Step::Fail("KVM internal error 1: emulation failure".into())]]);
        assert_eq!(outcomes, [Outcome::Failed("KVM internal error 1: emulation failure".into())]);
        let (_, outcomes, _) = play(vec![vec![Step::Broken]]);
        let Outcome::Failed(reason) = &outcomes[0] else { panic!("{outcomes:?}") };
        assert!(reason.starts_with("run a vCPU: "), "{reason}");
    }

    #[test]
    fn the_last_exit_is_told_in_words() {
        let trace = Trace::default();
        assert_eq!(trace.to_string(), "never left the guest (exit 0)");
        trace.record(&Exit::MmioRead { address: 0xd000_0000, data: &mut [0; 4] });
        assert_eq!(trace.to_string(), "read at 0xd0000000 (exit 1)");
        trace.record(&Exit::Shutdown);
        assert_eq!(trace.to_string(), "shutdown (reset or triple fault) (exit 2)");
    }
}
