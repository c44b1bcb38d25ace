//! Builds guest-init, a static program, with a Cargo of its own.
//!
//! Cargo cannot depend on another package's binary with other flags, so this script runs it a second time. It has a
//! target directory of its own, because the first one's is locked.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names a guest-init built elsewhere, which is then taken as it is.
const PREBUILT: &str = "LILBOX_GUEST_INIT";

/// Loaded into every guest and run once: small is fast. No position independence: there is nobody to hide from in a
/// process that is alone, and relocating takes time.
const FLAGS: &str = "-Ctarget-feature=+crt-static\x1f-Crelocation-model=static";

/// What Cargo tells this script and the second Cargo must not hear: it would build for lints or with other flags.
const NOT_FOR_THE_SECOND: [&str; 9] = [
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
    "LLVM_PROFILE_FILE",
    "CARGO_LLVM_COV",
];

/// The bytes of the program.
pub fn program(out: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed={PREBUILT}");
    if let Some(prebuilt) = env::var_os(PREBUILT).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(prebuilt);
        println!("cargo::rerun-if-changed={}", path.display());
        return fs::read(&path)
            .map_err(|error| format!("{PREBUILT}={}: {error}", path.display()).into());
    }
    let workspace = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("..").canonicalize()?;
    for source in [
        "Cargo.toml",
        "Cargo.lock",
        "guest-init/Cargo.toml",
        "guest-init/src",
        "proto/Cargo.toml",
        "proto/src",
    ] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    build(&workspace, &target_directory(out).join("guest-init"))
}

fn build(workspace: &Path, target: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let triple = format!("{}-unknown-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .current_dir(workspace)
        .args(["build", "--quiet", "--release", "--package", "guest-init", "--bin", "guest-init"])
        .args(["--target", &triple])
        .arg("--target-dir")
        .arg(target)
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    for name in NOT_FOR_THE_SECOND {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS);
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("building guest-init failed: {status}").into());
    }
    Ok(fs::read(target.join(triple).join("release").join("guest-init"))?)
}

/// The first Cargo's target directory, which it marks; `out` lies some levels below it.
fn target_directory(out: &Path) -> &Path {
    out.ancestors().filter(|path| path.join("CACHEDIR.TAG").exists()).last().unwrap_or(out)
}
