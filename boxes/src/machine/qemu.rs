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

/// The kernel's command line, to which the frequency of its clock is added. The machine has no ACPI: `reboot=t` (triple fault) is how it ends QEMU, together with
/// `-no-reboot`. Mitigations cost a lot under emulation and protect from nothing, since there is no speculation.
const KERNEL_ARGUMENTS: &str = "console=hvc0 quiet panic=-1 reboot=t mitigations=off";

/// How QEMU runs the emulated CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Threads {
    /// In turns, on one CPU of the host.
    Single,
    /// Each in a thread of its own.
    Multi,
}

/// First version, major and minor, whose CPUs may run in parallel. Older ones read the code they translate while
/// another CPU may be changing it, and keep what they read. Linux changes its own code as it runs: when a KVM guest
/// comes or goes, it patches its scheduler, and in about one of a hundred cases a CPU then ran into half a patch.
const FIRST_PARALLEL: (u32, u32) = (8, 1);

/// What the QEMU that prints `version` (`--version`) can be trusted with.
pub(super) fn threads(version: &str) -> Threads {
    let number = version.split_once(" version ").map(|(_, rest)| rest).unwrap_or_default();
    let mut parts = number.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) >= FIRST_PARALLEL => Threads::Multi,
        _ => Threads::Single,
    }
}

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
    threads: Threads,
    tsc_khz: Option<u64>,
    control: i32,
) -> Vec<OsString> {
    let threads = match threads {
        Threads::Single => "single",
        Threads::Multi => "multi",
    };
    let Settings { cpus, memory_mib, .. } = settings;
    let (disk, initramfs, console) =
        (MachineFiles::DISK, MachineFiles::INITRAMFS, MachineFiles::CONSOLE);
    let words = |text: String| text.split_whitespace().map(OsString::from).collect::<Vec<_>>();
    let mut arguments = words(format!(
        "-name lilbox-machine -nodefaults -no-user-config -display none -no-reboot
         -accel tcg,thread={threads} -cpu EPYC -smp {cpus} -m {memory_mib}M
         -M microvm,acpi=off,rtc=on,isa-serial=off
         -initrd {initramfs} -kernel"
    ));
    arguments.push(kernel.into());
    let clock = tsc_khz.map(|khz| format!(" tsc=reliable tsc_early_khz={khz}")).unwrap_or_default();
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
        let arguments =
            arguments(Path::new("/a b,c/vmlinux"), &settings, Threads::Multi, Some(2_500_000), 9);
        let follows = |option: &str, value: &str| {
            arguments.windows(2).any(|pair| pair[0] == *option && pair[1] == *value)
        };
        assert!(follows("-kernel", "/a b,c/vmlinux"));
        let append = format!("{KERNEL_ARGUMENTS} tsc=reliable tsc_early_khz=2500000");
        assert!(follows("-append", &append));
        assert!(follows("-accel", "tcg,thread=multi"));
        assert!(follows("-smp", "3") && follows("-m", "2048M") && follows("-cpu", "EPYC"));
        assert!(follows("-chardev", "socket,id=control,fd=9,server=on,wait=off"));
        assert!(follows("-netdev", "user,id=net,hostfwd=tcp:127.0.0.1:0-10.0.2.15:1024"));
        assert!(arguments.iter().all(|argument| !argument.is_empty() && argument != "\n"));
    }

    #[test]
    fn versions_with_the_race_run_one_cpu_at_a_time() {
        let threads = |number: &str| {
            threads(&format!("QEMU emulator version {number}\nCopyright (c) 2003-2022\n"))
        };
        assert_eq!(threads("7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)"), Threads::Single);
        assert_eq!(threads("8.0.5"), Threads::Single);
        assert_eq!(threads("8.1.0"), Threads::Multi);
        assert_eq!(threads("8.2.2 (Debian 1:8.2.2+ds-0ubuntu1)"), Threads::Multi);
        assert_eq!(threads("10.0.2"), Threads::Multi);
        assert_eq!(super::threads("something else"), Threads::Single);
        assert_eq!(super::threads(""), Threads::Single);
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
