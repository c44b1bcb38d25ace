//! The block device (virtio 1.2 §5.2): one queue, served synchronously on the disks' thread.
//!
//! Each request is finished before the next is taken, so a head is never in flight twice (CVE-2026-45782) and a flush
//! covers all that was answered before it.

mod config;
pub mod request;

use super::chain::{self, Buffers};
use super::device::{Activation, VirtioDevice};
use super::fault_log::FaultLog;
use super::io_thread::{EventHandler, EventSet, IoHandle, Registration, SharedHandler};
use super::serve::{INTERRUPT_COST, ServedQueue, Used};
use crate::block::BlockBackend;
use request::{Operation, Ranges, Request, Status};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use virtio_bindings::virtio_blk::VIRTIO_BLK_ID_BYTES;
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_queue::Queue;

/// Room for many small requests, and for the largest one.
const QUEUE_SIZES: [u16; 1] = [256];

/// The serial number as it is told to the driver.
const SERIAL_BYTES: usize = VIRTIO_BLK_ID_BYTES as usize;

/// Data that counts as one unit of waiting, see [`INTERRUPT_COST`]: 512 KiB are reported at once.
const BYTES_PER_COST: u32 = 32 << 10;

/// A disk.
pub struct Block {
    io: IoHandle,
    config: [u8; config::BYTES],
    features: u64,
    worker: Arc<Mutex<Worker>>,
    registration: Option<Registration>,
}

struct Worker {
    disk: Disk,
    requests: Option<ServedQueue>,
    faults: FaultLog,
}

/// What requests are carried out on.
struct Disk {
    backend: Box<dyn BlockBackend>,
    /// Whole sectors only.
    bytes: u64,
    read_only: bool,
    serial: [u8; SERIAL_BYTES],
}

impl Block {
    /// A disk that works on `io`. Of `serial`, 20 bytes are told to the guest. With `read_only` every change is refused,
    /// whatever the driver has been told or does; the backend should be unable to write as well.
    #[must_use]
    pub fn new(
        backend: Box<dyn BlockBackend>,
        read_only: bool,
        serial: &str,
        io: &IoHandle,
    ) -> Self {
        let bytes = backend.len() / request::SECTOR_BYTES * request::SECTOR_BYTES;
        let mut padded = [0; SERIAL_BYTES];
        for (to, from) in padded.iter_mut().zip(serial.as_bytes()) {
            *to = *from;
        }
        let disk = Disk { backend, bytes, read_only, serial: padded };
        let worker = Worker { disk, requests: None, faults: FaultLog::new("virtio-blk") };
        Self {
            io: io.clone(),
            config: config::space(bytes / request::SECTOR_BYTES),
            features: config::features(read_only),
            worker: Arc::new(Mutex::new(worker)),
            registration: None,
        }
    }

    fn worker(&self) -> MutexGuard<'_, Worker> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VirtioDevice for Block {
    fn id(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn features(&self) -> u64 {
        self.features
    }

    fn queue_max_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.config.get(offset..))
            .unwrap_or_default();
        for (to, from) in data.iter_mut().zip(rest) {
            *to = *from;
        }
    }

    // The only writable field belongs to a feature that is not offered (virtio 1.2 §5.2.5).
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

impl Drop for Block {
    fn drop(&mut self) {
        self.stop();
    }
}

impl EventHandler for Worker {
    fn ready(&mut self, _token: u64, _readiness: EventSet) {
        let Self { disk, requests: Some(requests), faults } = self else { return };
        let memory = requests.memory();
        let mut buffers = Buffers::default();
        requests.run(&memory, faults, |chain, faults| {
            match request::parse(chain, &memory, disk.bytes, &mut buffers) {
                Ok(request) => disk.handle(request, faults),
                Err(error) => {
                    faults.note(error);
                    Used::cheap(0)
                }
            }
        });
    }
}

impl Disk {
    /// Carries out a request and tells its status.
    fn handle(&mut self, request: Request<'_, '_>, faults: &mut FaultLog) -> Used {
        let (status, used) = match self.carry_out(&request.operation) {
            Ok(used) => (Status::Ok, used),
            Err(Failure::Refused(refusal)) => {
                faults.note(refusal);
                (refusal.status(), Used::cheap(0))
            }
            Err(Failure::ReadOnly) => {
                faults.note("a write to a read-only disk is refused");
                (Status::IoError, Used::cheap(0))
            }
            Err(Failure::Io(error)) if error.kind() == io::ErrorKind::Unsupported => {
                (Status::Unsupported, Used::cheap(0))
            }
            Err(Failure::Io(error)) => {
                // Among them a full host, which the guest sees as a broken disk: the log is where the reason is.
                faults.note(format_args!("the disk failed: {error}"));
                (Status::IoError, Used::cheap(0))
            }
        };
        request.status.set(status);
        // The status byte is written as well.
        Used { written: used.written.saturating_add(1), ..used }
    }

    fn carry_out(&mut self, operation: &Operation<'_, '_>) -> Result<Used, Failure> {
        match operation {
            Operation::Read { offset, into } => {
                self.backend.read_vectored_at(into, *offset)?;
                let bytes = u32::try_from(chain::total(into)).unwrap_or(u32::MAX);
                Ok(Used { written: bytes, cost: 1 + bytes / BYTES_PER_COST })
            }
            Operation::Write { offset, from } => {
                self.check_writable()?;
                self.backend.write_vectored_at(from, *offset)?;
                let bytes = u32::try_from(chain::total(from)).unwrap_or(u32::MAX);
                Ok(Used { written: 0, cost: 1 + bytes / BYTES_PER_COST })
            }
            Operation::Flush => {
                self.backend.flush()?;
                Ok(Used { written: 0, cost: INTERRUPT_COST })
            }
            Operation::Identify { into } => {
                let copied = chain::copy_in(into, &self.serial);
                Ok(Used::cheap(u32::try_from(copied).unwrap_or(u32::MAX)))
            }
            Operation::Discard(ranges) => {
                self.each_range(ranges, |backend, range| backend.discard(range.offset, range.len))
            }
            Operation::WriteZeroes(ranges) => self.each_range(ranges, |backend, range| {
                backend.write_zeroes(range.offset, range.len, range.unmap)
            }),
            Operation::Refuse(refusal) => Err(Failure::Refused(*refusal)),
        }
    }

    fn each_range(
        &mut self,
        ranges: &Ranges,
        mut change: impl FnMut(&mut dyn BlockBackend, &request::Range) -> io::Result<()>,
    ) -> Result<Used, Failure> {
        self.check_writable()?;
        for range in ranges.iter() {
            change(self.backend.as_mut(), range)?;
        }
        Ok(Used { written: 0, cost: INTERRUPT_COST })
    }

    fn check_writable(&self) -> Result<(), Failure> {
        if self.read_only { Err(Failure::ReadOnly) } else { Ok(()) }
    }
}

/// Why a request was not carried out.
enum Failure {
    Refused(request::Refusal),
    ReadOnly,
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

#[cfg(test)]
mod tests;
