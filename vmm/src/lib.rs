//! lilbox's virtual machine monitor: one process is one box.
//!
//! `lilbox-vmm` is started with a launch channel on standard input, takes its specification and descriptors from it,
//! confines itself, builds the machine, runs it, and ends with it. A map of the modules:
//!
//! - [`hv`]: the hypervisor in our own words, and its backends;
//! - [`arch`]: what a processor must look like when the guest's kernel begins;
//! - [`machine`]: layout of the guest's address space, boot, devices, the running machine;
//! - [`bus`]: from an address that the guest touched to the device that lives there;
//! - [`virtio`]: the devices;
//! - [`block`]: what is behind a disk;
//! - [`console_log`]: where the guest's console goes;
//! - [`stderr_log`]: the log, lines on standard error;
//! - [`launch`]: the channel to the parent process;
//! - [`control`]: the control socket, and the one table that decides what is done;
//! - [`sandbox`]: the layers that stand between a guest that has taken over this process and the host.

pub mod arch;
pub mod block;
pub mod bus;
pub mod console_log;
pub mod control;
pub mod hv;
pub mod launch;
pub mod machine;
pub mod sandbox;
pub mod stderr_log;
pub mod virtio;
