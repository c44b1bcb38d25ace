//! Landlock: no file can be opened, made or removed by name, no TCP connection made or accepted, no process outside
//! signalled. Descriptors that are open already keep working.

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetError, RulesetStatus, Scope,
};

/// Restricts this thread and those it starts, as far as the host's kernel can. Returns whether it can at all.
pub(super) fn restrict() -> Result<bool, RulesetError> {
    // The newest version that this code was written for; older kernels enforce what they know.
    let abi = ABI::V6;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}
