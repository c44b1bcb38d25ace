//! The console device (virtio 1.2 §5.3) with one port, `hvc0`: the guest's output goes to a sink, and no input comes.

pub mod request;

use super::chain::Buffers;
use super::device::{Activation, ActiveQueue, VirtioDevice};
use super::fault_log::FaultLog;
use super::io_thread::{EventHandler, EventSet, IoHandle, Registration, SharedHandler};
use super::serve::{ServedQueue, Used};
use crate::console_log::ConsoleLog;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use virtio_bindings::virtio_ids::VIRTIO_ID_CONSOLE;
use virtio_queue::Queue;

/// Input, then output (virtio 1.2 §5.3.2).
const QUEUE_SIZES: [u16; 2] = [16, 64];

/// Where console output goes.
pub trait ConsoleSink: Send {
    /// Takes bytes. Must not block for long: the sockets' thread is calling.
    fn output(&mut self, bytes: &[u8]);
}

impl ConsoleSink for ConsoleLog {
    fn output(&mut self, bytes: &[u8]) {
        self.append(bytes);
    }
}

/// A console device.
pub struct Console {
    io: IoHandle,
    worker: Arc<Mutex<Worker>>,
    registration: Option<Registration>,
    /// Kept for the driver's buffers, which are never used.
    input: Option<ActiveQueue>,
}

struct Worker {
    sink: Box<dyn ConsoleSink>,
    output: Option<ServedQueue>,
    faults: FaultLog,
}

impl Console {
    /// A device that works on `io`.
    #[must_use]
    pub fn new(sink: Box<dyn ConsoleSink>, io: &IoHandle) -> Self {
        let worker = Worker { sink, output: None, faults: FaultLog::new("virtio-console") };
        Self {
            io: io.clone(),
            worker: Arc::new(Mutex::new(worker)),
            registration: None,
            input: None,
        }
    }

    fn worker(&self) -> MutexGuard<'_, Worker> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VirtioDevice for Console {
    fn id(&self) -> u32 {
        VIRTIO_ID_CONSOLE
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_max_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    // All fields belong to features that are not offered.
    fn read_config(&self, _offset: u64, _data: &mut [u8]) {}

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn start(&mut self, activation: Activation) -> io::Result<()> {
        let Activation { queues, memory, interrupt, .. } = activation;
        let [input, output] =
            <[_; 2]>::try_from(queues).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let output = ServedQueue::new(output, memory, interrupt)?;
        let handler: SharedHandler = self.worker.clone();
        let mut worker = self.worker();
        let registration = self.io.register(output.doorbell(), EventSet::IN, handler, 0)?;
        worker.output = Some(output);
        drop(worker);
        self.registration = Some(registration);
        self.input = Some(input);
        Ok(())
    }

    fn stop(&mut self) -> Vec<Queue> {
        let registration = self.registration.take();
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the handler's mutex: it is not running, and will not be called again.
        drop(registration);
        let input = self.input.take().map(|input| input.queue);
        input.into_iter().chain(worker.output.take().map(ServedQueue::into_queue)).collect()
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.stop();
    }
}

impl EventHandler for Worker {
    fn ready(&mut self, _token: u64, _readiness: EventSet) {
        let Self { sink, output: Some(output), faults } = self else { return };
        let memory = output.memory();
        let mut buffers = Buffers::default();
        output.run(&memory, faults, |chain, faults| {
            match request::parse(chain, &memory, &mut buffers) {
                Ok(output) => output.copy_to(|bytes| sink.output(bytes)),
                Err(error) => faults.note(error),
            }
            Used::cheap(0)
        });
    }
}

#[cfg(test)]
mod tests;
