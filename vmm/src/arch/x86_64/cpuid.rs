//! What `cpuid` answers the guest: what the hypervisor offers, minus what the guest shall not see, plus the topology of
//! one socket with single-threaded cores.
//!
//! Leaf numbers and bits are those of the Intel SDM (vol. 2, `CPUID`) and the AMD APM (vol. 3, appendix E).

/// One answer of `cpuid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leaf {
    /// EAX on entry.
    pub function: u32,
    /// ECX on entry.
    pub index: u32,
    /// Whether `index` matters.
    pub indexed: bool,
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// What the guest may know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Number of processors.
    pub cpus: u8,
    /// Whether it may run virtual machines itself.
    pub nested: bool,
}

const VMX: u32 = 1 << 5; // leaf 1, ECX
const TSC_DEADLINE: u32 = 1 << 24; // leaf 1, ECX
const HYPERVISOR: u32 = 1 << 31; // leaf 1, ECX
const HTT: u32 = 1 << 28; // leaf 1, EDX
const ENERGY_BIAS: u32 = 1 << 3; // leaf 6, ECX
const CMP_LEGACY: u32 = 1 << 1; // leaf 0x8000_0001, ECX
const SVM: u32 = 1 << 2; // leaf 0x8000_0001, ECX
const PERF_CORE: u32 = 1 << 23; // leaf 0x8000_0001, ECX

/// Makes the answers for processor `id`, whose APIC id is the same number.
#[must_use]
pub fn for_vcpu(supported: &[Leaf], policy: Policy, id: u8) -> Vec<Leaf> {
    let mut leaves: Vec<Leaf> = supported
        .iter()
        .copied()
        .filter(|leaf| !is_topology(leaf.function))
        .map(|leaf| filter(leaf, policy, id))
        .collect();
    fix_xsave_sizes(&mut leaves);
    let highest = leaves.iter().find(|leaf| leaf.function == 0).map_or(0, |leaf| leaf.eax);
    for function in [0xb, 0x1f] {
        if function <= highest {
            leaves.extend(topology(function, policy.cpus, id));
        }
    }
    leaves
}

/// Leaves that [`topology`] writes anew, and AMD's own one that must not contradict them.
fn is_topology(function: u32) -> bool {
    matches!(function, 0xb | 0x1f | 0x8000_0026)
}

fn filter(mut leaf: Leaf, policy: Policy, id: u8) -> Leaf {
    let Policy { cpus, nested } = policy;
    let width = id_width(cpus);
    let apic_id = u32::from(id);
    match leaf.function {
        1 => {
            leaf.ebx = (leaf.ebx & 0xffff) | (1 << width << 16) | (apic_id << 24);
            leaf.ecx |= HYPERVISOR | TSC_DEADLINE;
            if !nested {
                leaf.ecx &= !VMX;
            }
            leaf.edx = set_if(leaf.edx, HTT, cpus > 1);
        }
        4 if leaf.eax & 0x1f != 0 => {
            leaf.eax =
                (leaf.eax & 0x3fff) | (sharing(leaf.eax, width) << 14) | (((1 << width) - 1) << 26);
        }
        6 => leaf.ecx &= !ENERGY_BIAS,
        // No performance counters: each access is an exit, and they tell one guest about others.
        0xa | 0x8000_0022 => leaf = Leaf { function: leaf.function, ..Leaf::default() },
        0x8000_0001 => {
            leaf.ecx &= !PERF_CORE;
            if !nested {
                leaf.ecx &= !SVM;
            }
            leaf.ecx = set_if(leaf.ecx, CMP_LEGACY, cpus > 1 && leaf.ecx & CMP_LEGACY != 0);
        }
        0x8000_0008 => leaf.ecx = (leaf.ecx & !0xf0ff) | (width << 12) | (u32::from(cpus) - 1),
        0x8000_000a if !nested => leaf = Leaf { function: leaf.function, ..Leaf::default() },
        0x8000_001d if leaf.eax & 0x1f != 0 => {
            leaf.eax = (leaf.eax & 0x3fff) | (sharing(leaf.eax, width) << 14)
        }
        // Extended APIC id; core id, one thread per core; one node.
        0x8000_001e => (leaf.eax, leaf.ebx, leaf.ecx, leaf.edx) = (apic_id, apic_id, 0, 0),
        _ => {}
    }
    leaf
}

/// Bits that number `cpus` processors.
fn id_width(cpus: u8) -> u32 {
    u32::from(cpus).next_power_of_two().trailing_zeros()
}

/// Number of processors that share a cache, minus one, by its level: the last level is shared by all.
fn sharing(eax: u32, width: u32) -> u32 {
    let level = (eax >> 5) & 7;
    if level >= 3 { (1 << width) - 1 } else { 0 }
}

fn set_if(register: u32, bit: u32, on: bool) -> u32 {
    if on { register | bit } else { register & !bit }
}

/// Extended topology: a level of threads (one per core), a level of cores, an end.
fn topology(function: u32, cpus: u8, id: u8) -> [Leaf; 3] {
    const THREADS: u32 = 1 << 8;
    const CORES: u32 = 2 << 8;
    let leaf = |index, shift, count, kind| Leaf {
        function,
        index,
        indexed: true,
        eax: shift,
        ebx: count,
        ecx: index | kind,
        edx: u32::from(id),
    };
    [leaf(0, 0, 1, THREADS), leaf(1, id_width(cpus), u32::from(cpus), CORES), leaf(2, 0, 0, 0)]
}

/// Makes the sizes in leaf 0xd follow from the components it lists. A hypervisor on an emulated or half-masked
/// processor reports sizes that do not fit, which makes the guest's kernel distrust (and warn about) its own tables.
fn fix_xsave_sizes(leaves: &mut [Leaf]) {
    const LEGACY_AND_HEADER_BYTES: u32 = 576;
    let end_of = |leaves: &[Leaf], component: u32| {
        let found = leaves.iter().find(|leaf| leaf.function == 0xd && leaf.index == component);
        found.map(|leaf| leaf.ebx.saturating_add(leaf.eax)).filter(|end| *end > 0)
    };
    let Some(main) = leaves.iter().position(|leaf| leaf.function == 0xd && leaf.index == 0) else {
        return;
    };
    let mut size = LEGACY_AND_HEADER_BYTES;
    for component in 2..32 {
        if leaves[main].eax & (1 << component) == 0 {
            continue;
        }
        match end_of(leaves, component) {
            Some(end) => size = size.max(end),
            // A component without a place cannot be saved.
            None => leaves[main].eax &= !(1 << component),
        }
    }
    // EBX is for what is switched on now; the hypervisor keeps it up to date from here on.
    (leaves[main].ebx, leaves[main].ecx) = (size, size);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(function: u32, index: u32) -> Leaf {
        Leaf {
            function,
            index,
            indexed: matches!(function, 4 | 0xb | 0xd | 0x8000_001d),
            ..Leaf::default()
        }
    }

    fn host() -> Vec<Leaf> {
        vec![
            Leaf { eax: 0x1f, ..leaf(0, 0) },
            Leaf { ebx: 0xaabb_0800, ecx: VMX | 1, edx: HTT | 1, ..leaf(1, 0) },
            Leaf { eax: 0xfc1f_c000 | (1 << 5) | 1, ..leaf(4, 0) },
            Leaf { eax: 0xfc1f_c000 | (3 << 5) | 3, ..leaf(4, 3) },
            leaf(4, 4),
            Leaf { eax: 4, ecx: ENERGY_BIAS, ..leaf(6, 0) },
            Leaf { eax: 0x0808_0402, edx: 0x603, ..leaf(0xa, 0) },
            Leaf { edx: 77, ..leaf(0xb, 0) },
            Leaf { eax: 0b10_0111, ebx: 576, ecx: 4096, ..leaf(0xd, 0) },
            Leaf { eax: 256, ebx: 576, ..leaf(0xd, 2) },
            Leaf { ecx: SVM | CMP_LEGACY | PERF_CORE, ..leaf(0x8000_0001, 0) },
            Leaf { edx: 1 << 8, ..leaf(0x8000_0007, 0) },
            Leaf { eax: 0x3028, ecx: 0x707f, ..leaf(0x8000_0008, 0) },
            Leaf { eax: 1, ebx: 8, ..leaf(0x8000_000a, 0) },
            Leaf { eax: 0x001f_c000 | (3 << 5) | 3, ..leaf(0x8000_001d, 3) },
            Leaf { eax: 99, ebx: 0x0199, ecx: 0x0300, ..leaf(0x8000_001e, 0) },
        ]
    }

    fn get(leaves: &[Leaf], function: u32, index: u32) -> Leaf {
        let mut found =
            leaves.iter().filter(|leaf| leaf.function == function && leaf.index == index);
        let leaf = *found.next().unwrap();
        assert_eq!(found.next(), None, "leaf {function:#x}.{index} twice");
        leaf
    }

    #[test]
    fn topology_is_one_socket_of_single_threaded_cores() {
        // processors, this one, bits of its id
        for (cpus, id, width) in
            [(1, 0, 0), (2, 1, 1), (3, 2, 2), (4, 3, 2), (5, 0, 3), (64, 63, 6)]
        {
            let leaves = for_vcpu(&host(), Policy { cpus, nested: false }, id);
            let (count, apic_id) = (u32::from(cpus), u32::from(id));
            let basic = get(&leaves, 1, 0);
            assert_eq!(basic.ebx, 0x0800 | (1 << width << 16) | (apic_id << 24));
            assert_eq!(basic.edx & HTT != 0, cpus > 1);
            for function in [0xb, 0x1f] {
                let threads = get(&leaves, function, 0);
                assert_eq!(
                    (threads.eax, threads.ebx, threads.ecx, threads.edx),
                    (0, 1, 0x100, apic_id)
                );
                let cores = get(&leaves, function, 1);
                assert_eq!(
                    (cores.eax, cores.ebx, cores.ecx, cores.edx),
                    (width, count, 0x201, apic_id)
                );
                assert_eq!(get(&leaves, function, 2).ebx, 0);
            }
            let max_core_id = (1 << width) - 1;
            assert_eq!(get(&leaves, 4, 0).eax, (max_core_id << 26) | (1 << 5) | 1);
            assert_eq!(
                get(&leaves, 4, 3).eax,
                (max_core_id << 26) | (max_core_id << 14) | (3 << 5) | 3
            );
            assert_eq!(get(&leaves, 4, 4).eax, 0);
            assert_eq!(get(&leaves, 0x8000_001d, 3).eax, (max_core_id << 14) | (3 << 5) | 3);
            assert_eq!(get(&leaves, 0x8000_0008, 0).ecx, (width << 12) | (count - 1));
            let node = get(&leaves, 0x8000_001e, 0);
            assert_eq!((node.eax, node.ebx, node.ecx), (apic_id, apic_id, 0));
        }
    }

    #[test]
    fn the_guest_knows_that_it_is_one_and_sees_no_virtualisation_unless_told() {
        for nested in [false, true] {
            let leaves = for_vcpu(&host(), Policy { cpus: 2, nested }, 0);
            let basic = get(&leaves, 1, 0);
            assert_eq!(basic.ecx & (HYPERVISOR | TSC_DEADLINE), HYPERVISOR | TSC_DEADLINE);
            assert_eq!(basic.ecx & VMX != 0, nested);
            assert_eq!(get(&leaves, 0x8000_0001, 0).ecx & SVM != 0, nested);
            assert_eq!(get(&leaves, 0x8000_000a, 0).eax, u32::from(nested));
            assert_eq!(get(&leaves, 0x8000_0007, 0).edx, 1 << 8, "an invariant TSC stays one");
        }
    }

    #[test]
    fn performance_counters_and_energy_hints_are_hidden() {
        let leaves = for_vcpu(&host(), Policy { cpus: 1, nested: true }, 0);
        assert_eq!(get(&leaves, 0xa, 0), leaf(0xa, 0));
        assert_eq!(get(&leaves, 0x8000_0001, 0).ecx & (PERF_CORE | CMP_LEGACY), 0);
        assert_eq!((get(&leaves, 6, 0).eax, get(&leaves, 6, 0).ecx), (4, 0));
    }

    #[test]
    fn xsave_sizes_follow_from_the_components() {
        let leaves = for_vcpu(&host(), Policy { cpus: 1, nested: false }, 0);
        let main = get(&leaves, 0xd, 0);
        // Component 5 has no leaf of its own: it is gone. Component 2 ends at 576 + 256.
        assert_eq!((main.eax, main.ebx, main.ecx), (0b111, 832, 832));
    }

    #[test]
    fn a_processor_without_extended_topology_gets_none() {
        let mut host = host();
        host[0].eax = 7;
        let leaves = for_vcpu(&host, Policy { cpus: 4, nested: false }, 1);
        assert!(leaves.iter().all(|leaf| !is_topology(leaf.function)));
    }
}
