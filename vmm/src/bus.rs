//! From an address or port that the guest touched to the device that lives there.
//!
//! # Trust
//! Every address, width and order of accesses is the guest's choice, from several processors at once. An access that
//! hits no device, or runs beyond one's end, reads as ones and is otherwise ignored, as on a real bus.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// A guest that probes for hardware touches a few dozen addresses; one that floods the log is stopped here.
const MAX_COMPLAINTS: u32 = 64;

/// A device on the bus.
pub trait BusDevice: Send {
    /// Answers a read; `data` arrives filled with ones. `offset + data.len()` lies within the device.
    fn read(&mut self, offset: u64, data: &mut [u8]);
    /// Takes a write. `offset + data.len()` lies within the device.
    fn write(&mut self, offset: u64, data: &[u8]);
}

struct Place {
    range: Range<u64>,
    /// Serialises the processors; held for one access. First in the lock order: devices lock their own under it.
    device: Mutex<Box<dyn BusDevice>>,
}

/// One address space with its devices.
#[derive(Default)]
struct Space {
    places: Vec<Place>,
}

/// Where places overlap, a device would be hidden by another.
#[derive(Debug, thiserror::Error)]
#[error("two devices claim {0:#x}")]
pub struct Overlap(u64);

impl Space {
    fn insert(&mut self, range: Range<u64>, device: Box<dyn BusDevice>) -> Result<(), Overlap> {
        if let Some(other) = self
            .places
            .iter()
            .find(|place| place.range.start < range.end && range.start < place.range.end)
        {
            return Err(Overlap(range.start.max(other.range.start)));
        }
        self.places.push(Place { range, device: Mutex::new(device) });
        Ok(())
    }

    /// Calls `access` with the device that holds the whole access, and the offset in it.
    fn access(
        &self,
        address: u64,
        len: usize,
        access: impl FnOnce(&mut dyn BusDevice, u64),
    ) -> bool {
        let Some(end) = u64::try_from(len).ok().and_then(|len| address.checked_add(len)) else {
            return false;
        };
        let found =
            self.places.iter().find(|place| place.range.start <= address && end <= place.range.end);
        let Some(place) = found else { return false };
        // Poisoned only in tests: in the program a panic ends the process.
        let mut device = place.device.lock().unwrap_or_else(PoisonError::into_inner);
        access(&mut **device, address - place.range.start);
        true
    }
}

/// All that is not RAM.
#[derive(Default)]
pub struct Bus {
    memory: Space,
    ports: Space,
    complaints: AtomicU32,
}

impl Bus {
    /// Adds a device to the memory's address space.
    ///
    /// # Errors
    /// If the range is taken.
    pub fn insert_mmio(
        &mut self,
        base: u64,
        len: u64,
        device: Box<dyn BusDevice>,
    ) -> Result<(), Overlap> {
        self.memory.insert(base..base + len, device)
    }

    /// Adds a device to the ports.
    ///
    /// # Errors
    /// If the range is taken.
    pub fn insert_ports(
        &mut self,
        base: u16,
        len: u16,
        device: Box<dyn BusDevice>,
    ) -> Result<(), Overlap> {
        self.ports.insert(u64::from(base)..u64::from(base) + u64::from(len), device)
    }

    /// Reads memory's address space.
    pub fn read_mmio(&self, address: u64, data: &mut [u8]) {
        data.fill(0xff);
        if !self.memory.access(address, data.len(), |device, offset| device.read(offset, data)) {
            self.complain("read", "address", address);
        }
    }

    /// Writes memory's address space.
    pub fn write_mmio(&self, address: u64, data: &[u8]) {
        if !self.memory.access(address, data.len(), |device, offset| device.write(offset, data)) {
            self.complain("write", "address", address);
        }
    }

    /// Reads a port. A repeated access reads the same port for each byte.
    pub fn read_port(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        for byte in data.chunks_mut(1) {
            // Ports without a device are how a kernel finds out what is there: no complaint.
            self.ports.access(u64::from(port), 1, |device, offset| device.read(offset, byte));
        }
    }

    /// Writes a port. A repeated access writes the same port for each byte.
    pub fn write_port(&self, port: u16, data: &[u8]) {
        for byte in data.chunks(1) {
            self.ports.access(u64::from(port), 1, |device, offset| device.write(offset, byte));
        }
    }

    fn complain(&self, what: &str, space: &str, address: u64) {
        let complaints = self.complaints.fetch_add(1, Ordering::Relaxed);
        if complaints < MAX_COMPLAINTS {
            log::warn!("guest {what} where no device is: {space} {address:#x}");
        } else if complaints > MAX_COMPLAINTS * 2 {
            // Keeps the counter from wrapping around.
            self.complaints.store(MAX_COMPLAINTS, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    type Writes = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

    /// Answers with its offset and remembers writes.
    struct Probe(Writes);

    impl BusDevice for Probe {
        fn read(&mut self, offset: u64, data: &mut [u8]) {
            data.fill(u8::try_from(offset).unwrap());
        }
        fn write(&mut self, offset: u64, data: &[u8]) {
            self.0.lock().unwrap().push((offset, data.to_vec()));
        }
    }

    fn bus() -> (Bus, Writes) {
        let writes = Arc::new(Mutex::new(Vec::new()));
        let mut bus = Bus::default();
        bus.insert_mmio(0x1000, 0x100, Box::new(Probe(Arc::clone(&writes)))).unwrap();
        bus.insert_ports(0x3f8, 8, Box::new(Probe(Arc::clone(&writes)))).unwrap();
        (bus, writes)
    }

    #[test]
    fn accesses_reach_their_device_and_others_read_as_ones() {
        let (bus, writes) = bus();
        let read = |address, len| {
            let mut data = vec![0x55; len];
            bus.read_mmio(address, &mut data);
            data
        };
        assert_eq!(read(0x1004, 4), [4; 4]);
        for (address, len) in
            [(0, 4), (0xffe, 4), (0x10fe, 4), (0x1100, 1), (u64::MAX, 1), (u64::MAX - 1, 8)]
        {
            assert_eq!(read(address, len), vec![0xff; len], "{address:#x}");
            bus.write_mmio(address, &vec![1; len]);
        }
        bus.write_mmio(0x10fc, &[1, 2, 3, 4]);
        assert_eq!(*writes.lock().unwrap(), [(0xfc, vec![1, 2, 3, 4])]);
    }

    #[test]
    fn repeated_port_accesses_stay_on_the_port() {
        let (bus, writes) = bus();
        bus.write_port(0x3f9, &[7, 8]);
        assert_eq!(*writes.lock().unwrap(), [(1, vec![7]), (1, vec![8])]);
        let mut data = [0; 3];
        bus.read_port(0x3ff, &mut data);
        assert_eq!(data, [7; 3]);
        bus.read_port(0xffff, &mut data);
        assert_eq!(data, [0xff; 3]);
    }

    #[test]
    fn overlapping_devices_are_refused() {
        let (mut bus, writes) = bus();
        for (base, len) in [(0x1000, 1), (0xfff, 2), (0x10ff, 0x1000), (0, 0x10000)] {
            assert!(bus.insert_mmio(base, len, Box::new(Probe(Arc::clone(&writes)))).is_err());
        }
        assert!(bus.insert_mmio(0x1100, 0x100, Box::new(Probe(writes))).is_ok());
    }
}
