//! What the machine's PID 1 is told, and the initramfs that tells it.

use super::qemu::{ADDRESS, AGENT_PORT, DISK_SERIAL, GATEWAY, NAME_SERVER, ROOT_TAG};
use super::{INNER_HOME, settings::Settings};
use proto::codec;
use proto::cpio::{Archive, Kind};
use proto::guest::{CONFIG_PATH, GuestConfig, Interface, Mount, Root, Transport};
use serde_bytes::ByteBuf;

/// The configuration of a machine of this size whose agent wants to see `secret`.
pub(super) fn guest_config(settings: &Settings, secret: &[u8], unix_nanos: u64) -> GuestConfig {
    GuestConfig {
        hostname: "lilbox-machine".into(),
        root: Root::NineP { tag: ROOT_TAG.into() },
        mounts: vec![Mount {
            serial: DISK_SERIAL.into(),
            fs: "ext4".into(),
            path: ByteBuf::from(INNER_HOME),
            read_only: false,
        }],
        env: Vec::new(),
        workdir: None,
        user: None,
        resolv_conf: Some(format!("nameserver {NAME_SERVER}\n")),
        hosts: Vec::new(),
        interfaces: vec![Interface {
            name: "eth0".into(),
            addresses: vec![format!("{ADDRESS}/24")],
            gateways: vec![GATEWAY.into()],
        }],
        agent: Transport::Tcp { port: AGENT_PORT, secret: ByteBuf::from(secret) },
        unix_nanos,
        cpus: settings.cpus,
    }
}

/// The initramfs: the archive with PID 1, followed by one with its configuration.
pub(super) fn initramfs(base: &[u8], config: &GuestConfig) -> Vec<u8> {
    let mut archive = Archive::new();
    archive.add(CONFIG_PATH, 0o600, Kind::File(&codec::encode(config)));
    [base, &archive.finish()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_follows_pid_1_on_a_boundary() {
        let settings = Settings { cpus: 2, memory_mib: 1024, disk_mib: 1024 };
        let config = guest_config(&settings, b"secret", 7);
        let base = vec![0; 1024];
        let bytes = initramfs(&base, &config);
        assert_eq!(bytes[..1024], base);
        assert_eq!(&bytes[1024..1030], b"070701");
        let encoded = codec::encode(&config);
        assert!(bytes.windows(encoded.len()).any(|window| window == encoded));
        assert_eq!(
            config.agent,
            Transport::Tcp { port: AGENT_PORT, secret: ByteBuf::from("secret") }
        );
    }
}
