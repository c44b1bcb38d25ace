//! x86-64: from our words for a processor's state to KVM's.

use crate::arch::VcpuSetup;
use crate::arch::x86_64::cpuid::Leaf;
use crate::arch::x86_64::registers::{Registers, Segment};
use crate::hv::{Error, Result};
use kvm_bindings::{
    CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES, Msrs, kvm_cpuid_entry2, kvm_fpu,
    kvm_lapic_state, kvm_msr_entry, kvm_regs, kvm_segment, kvm_xcr, kvm_xcrs,
};
use kvm_ioctls::VcpuFd;
use std::io;

pub(super) fn supported_cpuid(kvm: &kvm_ioctls::Kvm) -> Result<Vec<Leaf>> {
    let table = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(|error| Error::new("ask KVM for the processor's features", error))?;
    Ok(table.as_slice().iter().map(from_kvm).collect())
}

fn from_kvm(entry: &kvm_cpuid_entry2) -> Leaf {
    Leaf {
        function: entry.function,
        index: entry.index,
        indexed: entry.flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX != 0,
        eax: entry.eax,
        ebx: entry.ebx,
        ecx: entry.ecx,
        edx: entry.edx,
    }
}

fn to_kvm(leaf: &Leaf) -> kvm_cpuid_entry2 {
    kvm_cpuid_entry2 {
        function: leaf.function,
        index: leaf.index,
        flags: if leaf.indexed { KVM_CPUID_FLAG_SIGNIFCANT_INDEX } else { 0 },
        eax: leaf.eax,
        ebx: leaf.ebx,
        ecx: leaf.ecx,
        edx: leaf.edx,
        padding: [0; 3],
    }
}

/// CPUID comes first: which registers and MSRs exist depends on it.
pub(super) fn set_up(fd: &VcpuFd, setup: &VcpuSetup) -> Result<()> {
    let entries: Vec<_> = setup.cpuid.iter().map(to_kvm).collect();
    let table = CpuId::from_entries(&entries).map_err(|error| {
        Error::new("make a CPUID table", io::Error::other(format!("{error:?}")))
    })?;
    fd.set_cpuid2(&table).map_err(|error| Error::new("set CPUID", error))?;
    set_extended_state(fd, &setup.cpuid)?;
    set_msrs(fd, &setup.msrs)?;
    set_local_interrupts(fd)
}

/// Switches on all of the processor's extended state, as firmware would. KVM derives the sizes in leaf 0xd from it, and
/// on a host that is itself emulated it may not get to see that the guest does so (QEMU does not intercept `xsetbv`).
fn set_extended_state(fd: &VcpuFd, cpuid: &[Leaf]) -> Result<()> {
    let Some(leaf) = cpuid.iter().find(|leaf| leaf.function == 0xd && leaf.index == 0) else {
        return Ok(());
    };
    let value = (u64::from(leaf.edx) << 32) | u64::from(leaf.eax);
    if value == 0 {
        return Ok(());
    }
    let mut registers = kvm_xcrs { nr_xcrs: 1, ..Default::default() };
    registers.xcrs[0] = kvm_xcr { xcr: 0, reserved: 0, value };
    fd.set_xcrs(&registers).map_err(|error| Error::new("switch on extended state", error))
}

fn set_msrs(fd: &VcpuFd, msrs: &[(u32, u64)]) -> Result<()> {
    let entries: Vec<_> = msrs
        .iter()
        .map(|(index, data)| kvm_msr_entry { index: *index, data: *data, ..Default::default() })
        .collect();
    let table = Msrs::from_entries(&entries).map_err(|error| {
        Error::new("make a table of MSRs", io::Error::other(format!("{error:?}")))
    })?;
    let written = fd.set_msrs(&table).map_err(|error| Error::new("set MSRs", error))?;
    // KVM stops at the first one it does not accept and reports success.
    if let Some((index, _)) = msrs.get(written) {
        let refused = io::Error::other(format!("KVM does not accept MSR {index:#x}"));
        return Err(Error::new("set MSRs", refused));
    }
    Ok(())
}

/// LINT0 takes interrupts of the PIC, LINT1 is the NMI, as the MP table says.
fn set_local_interrupts(fd: &VcpuFd) -> Result<()> {
    const LVT_LINT0: usize = 0x350;
    const LVT_LINT1: usize = 0x360;
    const DELIVERY_MASK: u32 = 0x700;
    const DELIVERY_NMI: u32 = 0x400;
    const DELIVERY_EXTINT: u32 = 0x700;
    let mut state = fd.get_lapic().map_err(|error| Error::new("read the local APIC", error))?;
    set_delivery(&mut state, LVT_LINT0, DELIVERY_MASK, DELIVERY_EXTINT);
    set_delivery(&mut state, LVT_LINT1, DELIVERY_MASK, DELIVERY_NMI);
    fd.set_lapic(&state).map_err(|error| Error::new("set the local APIC", error))
}

fn set_delivery(state: &mut kvm_lapic_state, offset: usize, mask: u32, mode: u32) {
    let mut bytes = [0; 4];
    for (byte, stored) in bytes.iter_mut().zip(&state.regs[offset..offset + 4]) {
        *byte = stored.cast_unsigned();
    }
    let value = (u32::from_le_bytes(bytes) & !mask) | mode;
    for (stored, byte) in state.regs[offset..offset + 4].iter_mut().zip(value.to_le_bytes()) {
        *stored = byte.cast_signed();
    }
}

pub(super) fn set_registers(fd: &VcpuFd, registers: &Registers) -> Result<()> {
    // As after `finit` and with all SSE exceptions masked (Intel SDM vol. 3, table 11-1).
    let fpu = kvm_fpu { fcw: 0x37f, mxcsr: 0x1f80, ..Default::default() };
    fd.set_fpu(&fpu).map_err(|error| Error::new("set the FPU", error))?;

    let mut special =
        fd.get_sregs().map_err(|error| Error::new("read special registers", error))?;
    special.cs = segment(&registers.code);
    for data in
        [&mut special.ds, &mut special.es, &mut special.fs, &mut special.gs, &mut special.ss]
    {
        *data = segment(&registers.data);
    }
    special.tr = segment(&registers.task);
    special.gdt.base = registers.gdt_base;
    special.gdt.limit = registers.gdt_limit;
    special.idt.base = 0;
    special.idt.limit = 0;
    special.cr0 = registers.cr0;
    special.cr3 = registers.cr3;
    special.cr4 = registers.cr4;
    special.efer = registers.efer;
    fd.set_sregs(&special).map_err(|error| Error::new("set special registers", error))?;

    let general = kvm_regs {
        rip: registers.rip,
        rsi: registers.rsi,
        rsp: registers.rsp,
        rbp: registers.rsp,
        rflags: 2, // bit 1 is always set; interrupts are off
        ..Default::default()
    };
    fd.set_regs(&general).map_err(|error| Error::new("set registers", error))
}

fn segment(segment: &Segment) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: segment.limit,
        selector: segment.selector,
        type_: segment.kind,
        present: 1,
        dpl: 0,
        db: 0,
        s: u8::from(segment.is_code_or_data),
        l: u8::from(segment.is_long_code),
        g: u8::from(segment.counts_pages),
        avl: 0,
        unusable: 0,
        padding: 0,
    }
}
