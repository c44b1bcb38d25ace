//! The files that belong to lilbox: the VMM's program, the guest kernel, the base image.

use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// Where the installed files lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Install {
    /// The `lilbox-vmm` program.
    pub vmm: PathBuf,
    /// Directory of `vmlinux`, `base.erofs` and `base.json`.
    pub share: PathBuf,
    /// The KVM device.
    pub kvm: PathBuf,
}

/// Places that the user names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// The `lilbox-vmm` program.
    pub vmm: Option<PathBuf>,
    /// Directory of kernel and base image.
    pub share: Option<PathBuf>,
    /// The KVM device.
    pub kvm: Option<PathBuf>,
}

impl Install {
    /// Finds the files that belong to the program at `program` (its own path, links resolved). They lie in the prefix
    /// it was installed to, or beside it in a build tree. What is given in `told` is not searched.
    #[must_use]
    pub fn locate(program: &Path, told: Told) -> Self {
        let directory = program.parent().unwrap_or(Path::new("/"));
        let prefix = directory.parent().unwrap_or(Path::new("/"));
        let first = |candidates: [PathBuf; 2]| {
            let [likely, other] = candidates;
            if other.exists() && !likely.exists() { other } else { likely }
        };
        let beside = [prefix.join("share/lilbox"), directory.join("share/lilbox")];
        let programs = [directory.join("lilbox-vmm"), prefix.join("libexec/lilbox/lilbox-vmm")];
        Self {
            vmm: told.vmm.unwrap_or_else(|| first(programs)),
            share: told.share.unwrap_or_else(|| first(beside)),
            kvm: told.kvm.unwrap_or_else(|| "/dev/kvm".into()),
        }
    }

    /// The guest kernel.
    #[must_use]
    pub fn kernel(&self) -> PathBuf {
        self.share.join("vmlinux")
    }

    /// The base image's file system.
    #[must_use]
    pub fn base_image(&self) -> PathBuf {
        self.share.join("base.erofs")
    }

    /// The base image's description.
    #[must_use]
    pub fn base_description(&self) -> PathBuf {
        self.share.join("base.json")
    }

    /// Fails if a file that every box needs is missing.
    ///
    /// # Errors
    /// [`Error::InstallBroken`] with the first file that is missing.
    pub fn check(&self) -> Result<()> {
        let needed = [self.vmm.clone(), self.kernel(), self.base_image(), self.base_description()];
        match needed.into_iter().find(|path| !path.exists()) {
            Some(path) => Err(Error::InstallBroken { path }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_and_a_built_program_find_their_files() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for directory in
            ["usr/bin", "usr/share/lilbox", "usr/libexec/lilbox", "target/debug/share/lilbox"]
        {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        for file in ["usr/libexec/lilbox/lilbox-vmm", "target/debug/lilbox-vmm"] {
            std::fs::write(at(file), "").unwrap();
        }
        let installed = Install::locate(&at("usr/bin/lilbox"), Told::default());
        assert_eq!(installed.share, at("usr/share/lilbox"));
        assert_eq!(installed.vmm, at("usr/libexec/lilbox/lilbox-vmm"));
        let built = Install::locate(&at("target/debug/lilbox"), Told::default());
        assert_eq!(built.share, at("target/debug/share/lilbox"));
        assert_eq!(built.vmm, at("target/debug/lilbox-vmm"));
        let told = Told { share: Some(at("s")), vmm: Some(at("v")), kvm: None };
        let told = Install::locate(&at("usr/bin/lilbox"), told);
        assert_eq!((told.share.clone(), told.vmm.clone()), (at("s"), at("v")));
        assert!(matches!(told.check(), Err(Error::InstallBroken { path }) if path == at("v")));
    }
}
