//! The serial port of a debug boot: every kernel message from the first on, into the console log. Each byte is an exit,
//! so it is there only when asked for.

use crate::bus::{Bus, BusDevice};
use crate::console_log::ConsoleLog;
use crate::hv::Vm;
use crate::virtio::device::IrqLine;
use std::io;
use std::sync::Arc;
use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};

/// COM1.
const PORT: u16 = 0x3f8;
const PORTS: u16 = 8;
const GSI: u32 = 4;

struct Line(Arc<dyn IrqLine>);

impl Trigger for Line {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.raise()
    }
}

struct Port(Serial<Line, NoEvents, ConsoleLog>);

impl BusDevice for Port {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        for byte in data {
            *byte = self.0.read(u8::try_from(offset).unwrap_or(u8::MAX));
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for byte in data {
            if let Err(error) = self.0.write(u8::try_from(offset).unwrap_or(u8::MAX), *byte) {
                log::debug!("serial port: {error:?}");
            }
        }
    }
}

/// Puts the port on the bus.
pub(super) fn attach(
    vm: &impl Vm,
    bus: &mut Bus,
    log: &ConsoleLog,
) -> Result<(), super::DeviceError> {
    let line = Line(vm.irq_line(GSI)?);
    let serial = Serial::new(line, log.clone());
    bus.insert_ports(PORT, PORTS, Box::new(Port(serial)))?;
    Ok(())
}
