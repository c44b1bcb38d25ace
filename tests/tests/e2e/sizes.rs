//! Processors, memory, disks: what was asked for is there, and what cannot be had is refused.

use std::path::{Path, PathBuf};
use tests::{Invocation, Lab};

trials![
    one_two_and_four_processors,
    memory_from_128_mib_to_4_gib,
    what_cannot_be_had_is_an_error_not_a_hang,
    no_space_for_a_box_is_told_before_it_is_made,
    the_vmm_needs_little_memory_of_its_own,
];

fn one_two_and_four_processors() {
    let lab = Lab::new();
    for cpus in ["1", "2", "4"] {
        let sandbox = lab.boot(["--cpus", cpus]);
        assert_eq!(sandbox.sh("nproc"), cpus);
        // Every processor works: one process pinned to each, all at once.
        let script = "for cpu in $(seq 0 $(($(nproc) - 1))); do \
                      taskset -c $cpu sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo ok' & done; wait";
        assert_eq!(
            sandbox.sh(script).lines().filter(|line| *line == "ok").count().to_string(),
            cpus
        );
        let _ = lab.lilbox(["rm", "--force", &sandbox.name]).run().assert_code(0);
    }
}

fn memory_from_128_mib_to_4_gib() {
    let lab = Lab::new();
    for (option, mib) in [("128M", 128), ("1G", 1024), ("4G", 4096)] {
        let script = "grep MemTotal /proc/meminfo | tr -dc 0-9";
        let text =
            lab.run(["--memory", option, "--", "sh", "-c", script]).assert_code(0).stdout_text();
        let total: u64 = text.parse().expect("MemTotal in KiB");
        let most = mib * 1024;
        assert!(total < most && total > most - most / 8 - 48 * 1024, "{option}: {total} KiB");
    }
}

fn what_cannot_be_had_is_an_error_not_a_hang() {
    let lab = Lab::new();
    let _ = lab
        .run(["--memory", "16T", "--", "true"])
        .assert_code(125)
        .assert_stderr_contains("no_memory");
    let kernel = lab.home().join("kernel");
    let path = kernel.to_str().expect("UTF-8").to_owned();
    let _ = lab
        .run(["--kernel", &path, "--", "true"])
        .assert_code(125)
        .assert_stderr_contains("kernel_invalid");
    std::fs::write(&kernel, b"not a kernel").expect("write");
    let _ = lab
        .run(["--kernel", &path, "--", "true"])
        .assert_code(125)
        .assert_stderr_contains("kernel_invalid");
    assert!(lab.list().is_empty() && lab.vmm_pids().is_empty());
}

/// A file system of a few MiB, until dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(directory: &Path) -> Self {
        std::fs::create_dir(directory).expect("make the mount point");
        let path = directory.to_str().expect("UTF-8");
        let args = ["-t", "tmpfs", "-o", "size=8m", "tmpfs", path];
        let _ = Invocation::new(Path::new("mount"), args).run().assert_code(0);
        Self(directory.into())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Invocation::new(Path::new("umount"), [&self.0]).run();
        // A second panic would hide the first.
        assert!(unmounted.code == 0 || std::thread::panicking(), "{unmounted}");
    }
}

fn no_space_for_a_box_is_told_before_it_is_made() {
    if !rustix::process::geteuid().is_root() {
        // Only root can make a small file system; the machine, where all else runs, is always root's.
        return;
    }
    let lab = Lab::new();
    let home = lab.home().join("small");
    let _disk = SmallDisk::mount(&home);
    let lilbox = |args: &[&str]| lab.lilbox(args.iter().copied()).env("LILBOX_HOME", &home);
    for (args, code) in [(&["new", "web"][..], 1), (&["run", "--", "true"], 125)] {
        let _ = lilbox(args)
            .run()
            .assert_code(code)
            .assert_stdout("")
            .assert_stderr_contains("error[no_space]");
    }
    assert_eq!(lilbox(&["ls", "-q"]).text(), "");
    for directory in ["data/boxes", "data/images"] {
        let entries = home.join(directory).read_dir().expect("it is made with the first command");
        assert_eq!(entries.count(), 0, "{directory}");
    }
}

fn the_vmm_needs_little_memory_of_its_own() {
    let lab = Lab::new();
    let sandbox = lab.boot(["--memory", "512M"]);
    let _ = sandbox.sh("true");
    let memory = tests::process::memory(sandbox.vmm_pid(), 512);
    assert!(memory.own_kib <= 5 << 10, "{memory:?}");
}
