//! QEMU's command line.

use super::files::MachineFiles;
use super::settings::Settings;
use std::ffi::OsString;
use std::path::Path;

/// `serial` of the machine's own disk.
pub(super) const DISK_SERIAL: &str = "lilbox-machine";

/// Mount tag of the host's file tree.
pub(super) const ROOT_TAG: &str = "host";

/// Port of the agent inside the machine.
pub(super) const AGENT_PORT: u16 = 1024;

/// Network of the machine, as QEMU's user-mode network lays it out.
pub(super) const ADDRESS: &str = "10.0.2.15";
pub(super) const GATEWAY: &str = "10.0.2.2";
pub(super) const NAME_SERVER: &str = "10.0.2.3";

/// The kernel's command line, to which the frequency of its clock is added. The machine has no ACPI: `reboot=t` (triple
/// fault) is how it ends QEMU, together with `-no-reboot`. Mitigations cost a lot under emulation and protect from
/// nothing, since there is no speculation. `maxcpus=1`: PID 1 brings the other CPUs online, when the kernel has
/// patched its code; see [`ACCELERATOR`].
const KERNEL_ARGUMENTS: &str = "console=hvc0 quiet panic=-1 reboot=t mitigations=off maxcpus=1";

/// `CONFIG_HZ` of our kernel.
const KERNEL_HZ: u64 = 250;

/// Emulated CPUs run in parallel, each in a thread of its own.
///
/// QEMU before 8.1 reads code that it translates while another CPU may be changing it, and keeps what it read. Linux
/// changes its own code as it runs, and did so in the scheduler whenever KVM's first guest came or its last one went:
/// in about one of a hundred cases a CPU then ran into half a patch for good. So the machine's kernel is to patch
/// itself only while one CPU is online. PID 1 sees to that: it keeps a guest of each kind that KVM counts in patched
/// code before it brings the other CPUs online.
const ACCELERATOR: &str = "tcg,thread=multi";

/// The arguments. File names are relative to the machine's directory, where QEMU is to run; `control` is the number of
/// an inherited descriptor that listens for QMP clients.
///
/// - `EPYC` is a named model with nested SVM whose XSAVE sizes are consistent inside the boxes (`max` is not).
/// - `microvm` boots the kernel through a tiny firmware: no PCI, no ACPI, virtio-mmio on the kernel's command line.
/// - `multidevs=remap` keeps inode numbers of the host's several file systems apart.
/// - Port 0 lets the host's kernel choose the port: nothing is guessed, so nothing can collide.
/// - The balloon reports free pages, so that memory that boxes gave back leaves QEMU as well.
pub(super) fn arguments(
    kernel: &Path,
    settings: &Settings,
    tsc_khz: Option<u64>,
    control: i32,
) -> Vec<OsString> {
    let Settings { cpus, memory_mib, .. } = settings;
    let (disk, initramfs, console) =
        (MachineFiles::DISK, MachineFiles::INITRAMFS, MachineFiles::CONSOLE);
    let words = |text: String| text.split_whitespace().map(OsString::from).collect::<Vec<_>>();
    let mut arguments = words(format!(
        "-name lilbox-machine -nodefaults -no-user-config -display none -no-reboot
         -accel {ACCELERATOR} -cpu EPYC -smp {cpus} -m {memory_mib}M
         -M microvm,acpi=off,rtc=on,isa-serial=off
         -initrd {initramfs} -kernel"
    ));
    arguments.push(kernel.into());
    // With `lpj` no CPU measures its delay loop, which takes over half a second for each that comes online. The kernel
    // would compute the same for the first one: ticks of this clock in one of its own.
    let clock = |khz: u64| {
        format!(" tsc=reliable tsc_early_khz={khz} lpj={}", khz.saturating_mul(1000) / KERNEL_HZ)
    };
    let clock = tsc_khz.map(clock).unwrap_or_default();
    arguments.extend(["-append".into(), format!("{KERNEL_ARGUMENTS}{clock}").into()]);
    arguments.extend(words(format!(
        "-chardev socket,id=control,fd={control},server=on,wait=off -mon chardev=control,mode=control
         -chardev file,id=console,path={console},append=on
         -device virtio-serial-device -device virtconsole,chardev=console
         -fsdev local,id=root,path=/,security_model=none,multidevs=remap
         -device virtio-9p-device,fsdev=root,mount_tag={ROOT_TAG}
         -drive if=none,id=disk,file={disk},format=raw,cache=writeback,discard=unmap,detect-zeroes=unmap
         -device virtio-blk-device,drive=disk,serial={DISK_SERIAL}
         -netdev user,id=net,hostfwd=tcp:127.0.0.1:0-{ADDRESS}:{AGENT_PORT} -device virtio-net-device,netdev=net
         -object rng-random,id=entropy,filename=/dev/urandom -device virtio-rng-device,rng=entropy
         -device virtio-balloon-device,free-page-reporting=on,deflate-on-oom=on"
    )));
    arguments
}

/// Finds the host's port of the agent in QEMU's table of forwarded ports (`info usernet`). Its lines are
/// `TCP[HOST_FORWARD]  11  127.0.0.1  41217  10.0.2.15  1024  0  0`.
pub(super) fn forwarded_port(table: &str) -> Option<u16> {
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_forward = words.next() == Some("TCP[HOST_FORWARD]");
        let (_descriptor, host, port) = (words.next()?, words.next()?, words.next()?);
        let (guest, guest_port) = (words.next()?, words.next()?);
        let is_ours = is_forward
            && host == "127.0.0.1"
            && guest == ADDRESS
            && guest_port.parse() == Ok(AGENT_PORT);
        if is_ours { port.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_with_their_values_and_paths_stay_whole() {
        let settings = Settings { cpus: 3, memory_mib: 2048, disk_mib: 1 };
        let arguments = arguments(Path::new("/a b,c/vmlinux"), &settings, Some(2_500_000), 9);
        let follows = |option: &str, value: &str| {
            arguments.windows(2).any(|pair| pair[0] == *option && pair[1] == *value)
        };
        assert!(follows("-kernel", "/a b,c/vmlinux"));
        let append = format!("{KERNEL_ARGUMENTS} tsc=reliable tsc_early_khz=2500000 lpj=10000000");
        assert!(follows("-append", &append));
        assert!(follows("-accel", "tcg,thread=multi"));
        assert!(follows("-smp", "3") && follows("-m", "2048M") && follows("-cpu", "EPYC"));
        assert!(follows("-chardev", "socket,id=control,fd=9,server=on,wait=off"));
        assert!(follows("-netdev", "user,id=net,hostfwd=tcp:127.0.0.1:0-10.0.2.15:1024"));
        assert!(arguments.iter().all(|argument| !argument.is_empty() && argument != "\n"));
    }

    #[test]
    fn the_port_is_found_in_the_table() {
        let table = "Hub -1 (net):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n\
                     \x20 TCP[ESTABLISHED]  12  127.0.0.1 41217  10.0.2.15 1024 0 0\r\n\
                     \x20 TCP[HOST_FORWARD]  13  127.0.0.1 5 10.0.2.15  22     0     0\r\n\
                     \x20 TCP[HOST_FORWARD]  11  127.0.0.1 41217       10.0.2.15  1024     0     0\r\n";
        assert_eq!(forwarded_port(table), Some(41217));
        assert_eq!(forwarded_port(""), None);
        assert_eq!(forwarded_port("TCP[HOST_FORWARD]  11  127.0.0.1"), None);
    }
}
