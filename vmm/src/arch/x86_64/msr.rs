//! Model-specific registers that differ from their value at reset.

use std::sync::Arc;

/// Fast string operations on (Intel SDM vol. 4, `IA32_MISC_ENABLE`): without it the kernel copies word by word.
const MISC_ENABLE: (u32, u64) = (0x1a0, 1);

/// Memory types: enabled, write-back unless said otherwise (Intel SDM vol. 3, 12.11.2.1). At reset all memory is
/// uncached, and firmware, which would change that, is what we do not have.
const MTRR_DEF_TYPE: (u32, u64) = (0x2ff, (1 << 11) | 6);

/// The registers to set on every vCPU.
#[must_use]
pub fn boot_values() -> Arc<[(u32, u64)]> {
    Arc::new([MISC_ENABLE, MTRR_DEF_TYPE])
}
