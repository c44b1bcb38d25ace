//! The KVM backend with a few bytes of guest code, on a real `/dev/kvm`.
//!
//! The code avoids what a software KVM cannot emulate, so this runs on more hosts than a kernel does. Without
//! `/dev/kvm` each test says that it was skipped; with `LILBOX_REQUIRE_KVM=1` that is a failure.

mod device;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use vm_memory::{Bytes, GuestAddress};
use vmm::arch::VcpuSetup;
use vmm::arch::x86_64::cpuid::{self, Policy};
use vmm::arch::x86_64::{msr, registers};
use vmm::hv::kvm::{Kvm, KvmVcpu, KvmVm};
use vmm::hv::{Exit, Hypervisor, Vcpu, Vm};
use vmm::machine::ram;

const CODE: u64 = 0x10_0000;

fn kvm() -> Option<Kvm> {
    device::kvm().map(|file| Kvm::new(file.into()).unwrap())
}

/// A machine with 2 MiB of RAM and this code where the processor begins.
fn machine(kvm: &Kvm, code: &[u8]) -> KvmVm {
    let memory = Arc::new(ram::map(2 << 20).unwrap());
    memory.write_slice(code, GuestAddress(CODE)).unwrap();
    registers::write_tables(&memory).unwrap();
    let vm = kvm.create_vm().unwrap();
    vm.map(&memory).unwrap();
    vm
}

fn processor(kvm: &Kvm, vm: &KvmVm) -> KvmVcpu {
    let mut vcpu = vm.create_vcpu(0).unwrap();
    let supported = kvm.supported_cpuid().unwrap();
    let cpuid = cpuid::for_vcpu(&supported, Policy { cpus: 1, nested: false }, 0);
    vcpu.set_up(&VcpuSetup { cpuid, msrs: msr::boot_values() }).unwrap();
    vcpu.set_entry(&registers::for_entry(CODE)).unwrap();
    vcpu
}

#[test]
fn exits_carry_what_the_guest_did_and_answers_reach_it() {
    let Some(kvm) = kvm() else { return };
    let vm = machine(
        &kvm,
        &[
            0xb0, 0x2a, // mov al, 42
            0xe6, 0x80, // out 0x80, al
            0xe4, 0x81, // in al, 0x81
            0xe6, 0x82, // out 0x82, al
            0x0f, 0x0b, // ud2 without an IDT: a triple fault
        ],
    );
    let mut vcpu = processor(&kvm, &vm);
    assert_eq!(vcpu.run().unwrap(), Exit::IoOut { port: 0x80, data: &[42] });
    match vcpu.run().unwrap() {
        Exit::IoIn { port: 0x81, data } => data.fill(7),
        other => panic!("{other:?}"),
    }
    assert_eq!(vcpu.run().unwrap(), Exit::IoOut { port: 0x82, data: &[7] });
    assert_eq!(vcpu.run().unwrap(), Exit::Shutdown);
}

#[test]
fn the_guest_finds_its_boot_parameters_and_its_processor() {
    let Some(kvm) = kvm() else { return };
    let vm = machine(
        &kvm,
        &[
            0x89, 0xf0, // mov eax, esi
            0xe7, 0x80, // out 0x80, eax
            0xb8, 0x01, 0x00, 0x00, 0x00, // mov eax, 1
            0x0f, 0xa2, // cpuid
            0x89, 0xc8, // mov eax, ecx
            0xe7, 0x81, // out 0x81, eax
            0x0f, 0x0b, // ud2
        ],
    );
    let mut vcpu = processor(&kvm, &vm);
    assert_eq!(vcpu.run().unwrap(), Exit::IoOut { port: 0x80, data: &0x7000_u32.to_le_bytes() });
    match vcpu.run().unwrap() {
        Exit::IoOut { port: 0x81, data } => {
            let features = u32::from_le_bytes(data.try_into().unwrap());
            assert_ne!(features & (1 << 31), 0, "the guest knows that it is one");
            assert_eq!(features & (1 << 5), 0, "vmx is hidden");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(vcpu.run().unwrap(), Exit::Shutdown);
}

#[test]
fn a_kick_takes_an_endless_loop_out_of_the_guest_and_is_never_lost() {
    let Some(kvm) = kvm() else { return };
    let vm = Arc::new(machine(&kvm, &[0xb0, 0x01, 0xe6, 0x80, 0xeb, 0xfe])); // out 0x80, al; jmp $
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn({
        let (vm, stop) = (Arc::clone(&vm), Arc::clone(&stop));
        move || {
            let kvm = self::kvm().unwrap();
            let mut vcpu = processor(&kvm, &vm);
            assert!(matches!(vcpu.run().unwrap(), Exit::IoOut { port: 0x80, .. }));
            sender.send(vcpu.kicker()).unwrap();
            let mut kicks = 0;
            while !stop.load(Ordering::SeqCst) {
                assert_eq!(vcpu.run().unwrap(), Exit::Interrupted);
                kicks += 1;
            }
            kicks
        }
    });
    let kicker = receiver.recv().unwrap();
    // The flag is seen only after the kick has brought the thread out, whenever it arrives.
    stop.store(true, Ordering::SeqCst);
    kicker.kick();
    assert!(thread.join().unwrap() <= 1);
    // The thread is gone: nothing happens.
    kicker.kick();
}

#[test]
fn a_processor_keeps_guest_memory_alive() {
    let Some(kvm) = kvm() else { return };
    let vm = machine(&kvm, &[0xe6, 0x80, 0x0f, 0x0b]); // out 0x80, al; ud2
    let mut vcpu = processor(&kvm, &vm);
    drop(vm);
    assert!(matches!(vcpu.run().unwrap(), Exit::IoOut { port: 0x80, .. }));
    assert_eq!(vcpu.run().unwrap(), Exit::Shutdown);
}

#[test]
fn memory_is_mapped_once_and_lines_and_doorbells_can_be_made() {
    let Some(kvm) = kvm() else { return };
    let vm = machine(&kvm, &[]);
    assert!(vm.map(&Arc::new(ram::map(2 << 20).unwrap())).is_err());
    let line = vm.irq_line(5).unwrap();
    for _ in 0..3 {
        line.raise().unwrap();
    }
    let bells: Vec<_> =
        (0..4).map(|index| vm.doorbell(0xd000_0050, index).unwrap().unwrap()).collect();
    assert!(vm.doorbell(0xd000_0050, 0).is_err(), "two bells for one queue");
    drop(bells);
}
