//! The initramfs that every guest starts from: guest-init and little else, without configuration.

/// The archive (cpio, uncompressed, padded so that another may follow).
pub const INITRAMFS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/initramfs.cpio"));

/// SHA-256 of [`INITRAMFS`] in hexadecimal digits, by which equal ones are recognised.
pub const INITRAMFS_SHA256: &str = env!("LILBOX_INITRAMFS_SHA256");

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn the_key_is_the_digest_and_another_archive_may_follow() {
        assert_eq!(crate::hex::digits(&Sha256::digest(INITRAMFS)), INITRAMFS_SHA256);
        assert!(INITRAMFS.len().is_multiple_of(512));
    }

    #[test]
    fn the_archive_holds_a_static_program_and_stays_small() {
        let find =
            |needle: &[u8]| INITRAMFS.windows(needle.len()).position(|window| window == needle);
        assert!(INITRAMFS.starts_with(b"070701"));
        assert!(find(b"dev/console\0").is_some());
        let program = &INITRAMFS[find(b"\x7fELF").unwrap()..];
        let field =
            |offset: usize| u64::from_le_bytes(program[offset..offset + 8].try_into().unwrap());
        // `e_phoff`, `e_phnum` and entries of 56 bytes that begin with `p_type`; type 3 asks for a dynamic loader.
        let (table, count) = (usize::try_from(field(32)).unwrap(), program[56]);
        let types = (0..usize::from(count)).map(|index| program[table + index * 56]);
        assert!(
            count > 0 && types.into_iter().all(|kind| kind != 3),
            "guest-init needs no dynamic loader"
        );
        assert!(INITRAMFS.len() < 1_600_000, "{} bytes", INITRAMFS.len());
    }
}
