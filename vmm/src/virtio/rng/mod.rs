//! The entropy device (virtio 1.2 §5.4): random bytes of the host's kernel.

pub mod request;

use super::chain::Buffers;
use super::device::{Activation, VirtioDevice};
use super::fault_log::FaultLog;
use super::io_thread::{EventHandler, EventSet, IoHandle, Registration, SharedHandler};
use super::serve::{ServedQueue, Used};
use request::{MAX_ANSWER_BYTES, Request};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use virtio_queue::Queue;

/// The driver asks for one buffer at a time.
const QUEUE_SIZES: [u16; 1] = [64];

/// An entropy device.
pub struct Rng {
    io: IoHandle,
    worker: Arc<Mutex<Worker>>,
    registration: Option<Registration>,
}

struct Worker {
    requests: Option<ServedQueue>,
    faults: FaultLog,
}

impl Rng {
    /// A device that works on `io`.
    #[must_use]
    pub fn new(io: &IoHandle) -> Self {
        let worker = Worker { requests: None, faults: FaultLog::new("virtio-rng") };
        Self { io: io.clone(), worker: Arc::new(Mutex::new(worker)), registration: None }
    }

    fn worker(&self) -> MutexGuard<'_, Worker> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VirtioDevice for Rng {
    fn id(&self) -> u32 {
        VIRTIO_ID_RNG
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_max_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn read_config(&self, _offset: u64, _data: &mut [u8]) {}

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn start(&mut self, activation: Activation) -> io::Result<()> {
        let Activation { queues, memory, interrupt, .. } = activation;
        let [requests] =
            <[_; 1]>::try_from(queues).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let requests = ServedQueue::new(requests, memory, interrupt)?;
        let handler: SharedHandler = self.worker.clone();
        let mut worker = self.worker();
        let registration = self.io.register(requests.doorbell(), EventSet::IN, handler, 0)?;
        worker.requests = Some(requests);
        drop(worker);
        self.registration = Some(registration);
        Ok(())
    }

    fn stop(&mut self) -> Vec<Queue> {
        let registration = self.registration.take();
        let mut worker = self.worker();
        // Under the handler's mutex: it is not running, and will not be called again.
        drop(registration);
        worker.requests.take().into_iter().map(ServedQueue::into_queue).collect()
    }
}

impl Drop for Rng {
    fn drop(&mut self) {
        self.stop();
    }
}

impl EventHandler for Worker {
    fn ready(&mut self, _token: u64, _readiness: EventSet) {
        let Self { requests: Some(requests), faults } = self else { return };
        let memory = requests.memory();
        let mut buffers = Buffers::default();
        requests.run(&memory, faults, |chain, faults| {
            match request::parse(chain, &memory, &mut buffers) {
                Ok(request) => Used::cheap(fill(&request)),
                Err(error) => {
                    faults.note(error);
                    Used::cheap(0)
                }
            }
        });
    }
}

/// Answers one request; returns how many bytes were written.
fn fill(request: &Request<'_, '_>) -> u32 {
    let mut bytes = [0; MAX_ANSWER_BYTES];
    let bytes = &mut bytes[..request.len()];
    if let Err(error) = getrandom::fill(bytes) {
        // The host's kernel has no reason to refuse; the guest gets nothing, and asks again.
        log::error!("the host gives no random bytes: {error}");
        return 0;
    }
    request.answer(bytes)
}

#[cfg(test)]
mod tests;
