//! A hypervisor that plays a script of exits: the run loop without a processor.

use super::{Error, Exit, Hypervisor, Kick, Result, Vcpu, Vm};
use crate::arch::{Registers, VcpuSetup};
use crate::virtio::device::{GuestMemory, IrqLine};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use vmm_sys_util::eventfd::EventFd;

/// A step of a vCPU's script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Reads this many bytes.
    MmioRead(u64, usize),
    /// Writes bytes.
    MmioWrite(u64, Vec<u8>),
    /// Reads this many bytes from a port.
    IoIn(u16, usize),
    /// Writes bytes to a port.
    IoOut(u16, Vec<u8>),
    /// Halts.
    Halt,
    /// Resets the machine.
    Shutdown,
    /// Fails with this reason.
    Fail(String),
    /// Stays in the guest until it is kicked.
    Wait,
    /// `run` itself returns an error.
    Broken,
}

/// What one machine's processors do, and what was seen of it.
#[derive(Default)]
struct Shared {
    scripts: Mutex<Vec<VecDeque<Step>>>,
    /// Answers of reads, in order.
    answers: Mutex<Vec<Vec<u8>>>,
    kicked: Mutex<Vec<bool>>,
    wake: Condvar,
}

/// Locks; a test that panicked elsewhere has failed already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The hypervisor: every machine it makes plays the same scripts.
#[derive(Clone, Default)]
pub struct Fake {
    shared: Arc<Shared>,
}

impl Fake {
    /// One script per vCPU. A vCPU at the end of its script waits to be kicked.
    #[must_use]
    pub fn new(scripts: Vec<Vec<Step>>) -> Self {
        let shared = Shared {
            kicked: Mutex::new(vec![false; scripts.len()]),
            scripts: Mutex::new(scripts.into_iter().map(VecDeque::from).collect()),
            ..Shared::default()
        };
        Self { shared: Arc::new(shared) }
    }

    /// What reads were answered so far.
    #[must_use]
    pub fn answers(&self) -> Vec<Vec<u8>> {
        lock(&self.shared.answers).clone()
    }
}

impl Hypervisor for Fake {
    type Vm = FakeVm;

    fn create_vm(&self) -> Result<FakeVm> {
        Ok(FakeVm { shared: Arc::clone(&self.shared) })
    }

    fn max_vcpus(&self) -> usize {
        lock(&self.shared.scripts).len()
    }

    #[cfg(target_arch = "x86_64")]
    fn supported_cpuid(&self) -> Result<Vec<crate::arch::x86_64::cpuid::Leaf>> {
        Ok(Vec::new())
    }
}

/// A machine without memory of its own.
pub struct FakeVm {
    shared: Arc<Shared>,
}

impl Vm for FakeVm {
    type Vcpu = FakeVcpu;

    fn map(&self, _: &Arc<GuestMemory>) -> Result<()> {
        Ok(())
    }

    fn irq_line(&self, _: u32) -> Result<Arc<dyn IrqLine>> {
        Ok(Arc::new(FakeLine))
    }

    fn doorbell(&self, _: u64, _: u32) -> Result<Option<EventFd>> {
        Ok(None)
    }

    fn create_vcpu(&self, id: u8) -> Result<FakeVcpu> {
        Ok(FakeVcpu {
            shared: Arc::clone(&self.shared),
            id: usize::from(id),
            buffer: Vec::new(),
            reading: false,
        })
    }
}

/// A line to nobody: there is no guest to be interrupted.
struct FakeLine;

impl IrqLine for FakeLine {
    fn raise(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A processor that follows its script.
pub struct FakeVcpu {
    shared: Arc<Shared>,
    id: usize,
    buffer: Vec<u8>,
    reading: bool,
}

impl FakeVcpu {
    fn wait_for_kick(&self) {
        let mut kicked = lock(&self.shared.kicked);
        while !kicked[self.id] {
            kicked = self.shared.wake.wait(kicked).unwrap_or_else(PoisonError::into_inner);
        }
        kicked[self.id] = false;
    }
}

impl Vcpu for FakeVcpu {
    fn set_up(&mut self, _: &VcpuSetup) -> Result<()> {
        Ok(())
    }

    fn set_entry(&mut self, _: &Registers) -> Result<()> {
        Ok(())
    }

    fn kicker(&self) -> Arc<dyn Kick> {
        Arc::new(FakeKick { shared: Arc::clone(&self.shared), id: self.id })
    }

    fn run(&mut self) -> Result<Exit<'_>> {
        if std::mem::take(&mut self.reading) {
            lock(&self.shared.answers).push(self.buffer.clone());
        }
        let step = lock(&self.shared.scripts)[self.id].pop_front().unwrap_or(Step::Wait);
        Ok(match step {
            Step::MmioRead(address, len) => {
                (self.buffer, self.reading) = (vec![0; len], true);
                Exit::MmioRead { address, data: &mut self.buffer }
            }
            Step::IoIn(port, len) => {
                (self.buffer, self.reading) = (vec![0; len], true);
                Exit::IoIn { port, data: &mut self.buffer }
            }
            Step::MmioWrite(address, data) => {
                self.buffer = data;
                Exit::MmioWrite { address, data: &self.buffer }
            }
            Step::IoOut(port, data) => {
                self.buffer = data;
                Exit::IoOut { port, data: &self.buffer }
            }
            Step::Halt => Exit::Halt,
            Step::Shutdown => Exit::Shutdown,
            Step::Fail(reason) => Exit::Failed(reason),
            Step::Wait => {
                self.wait_for_kick();
                Exit::Interrupted
            }
            Step::Broken => {
                return Err(Error::new("run a vCPU", io::Error::from_raw_os_error(libc::EIO)));
            }
        })
    }
}

struct FakeKick {
    shared: Arc<Shared>,
    id: usize,
}

impl Kick for FakeKick {
    fn kick(&self) {
        lock(&self.shared.kicked)[self.id] = true;
        self.shared.wake.notify_all();
    }
}
