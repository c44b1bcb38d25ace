//! Route netlink messages (`rtnetlink(7)`): as many as bringing up an interface needs.

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::IpAddr;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const NLMSG_ERROR: u16 = 2;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// No duplicate detection: the address would be unusable for a second, and the host has chosen it.
const IFA_F_NODAD: u8 = 0x02;

const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RTN_UNICAST: u8 = 1;

const IFF_UP: u32 = 1;

/// A route netlink socket.
#[derive(Debug)]
pub struct RouteSocket(OwnedFd);

impl RouteSocket {
    /// Opens one.
    ///
    /// # Errors
    /// If the kernel has none.
    pub fn open() -> io::Result<Self> {
        // No protocol is NETLINK_ROUTE, which is 0.
        Ok(Self(rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?))
    }

    /// The index of an interface.
    ///
    /// # Errors
    /// `ENODEV` if there is none of that name.
    pub fn index(&self, interface: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.0, interface)?)
    }

    /// Brings an interface up.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn bring_up(&self, index: u32) -> io::Result<()> {
        self.request(RTM_NEWLINK, 0, &link_up(index))
    }

    /// Gives an interface an address.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        self.request(
            RTM_NEWADDR,
            NLM_F_CREATE | NLM_F_REPLACE,
            &new_address(index, address, prefix),
        )
    }

    /// Adds a default route.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn add_default_route(&self, index: u32, gateway: IpAddr) -> io::Result<()> {
        self.request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &default_route(index, gateway))
    }

    fn request(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let message = message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, body)?;
        rustix::net::send(&self.0, &message, SendFlags::empty())?;
        let mut answer = [0; 4096];
        let (received, _) = rustix::net::recv(&self.0, &mut answer, RecvFlags::empty())?;
        acknowledgement(answer.get(..received).unwrap_or_default())
    }
}

fn message(kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(16 + body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend_from_slice(&length.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&[0; 8]); // sequence number, port
    message.extend_from_slice(body);
    Ok(message)
}

/// Reads an `nlmsgerr`: the header, then 0 or a negative error number.
fn acknowledgement(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let error = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, error) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(error)) => Err(io::Error::from_raw_os_error(error.wrapping_neg())),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// `struct ifinfomsg`: family, padding, type, index, flags, mask of flags to change.
fn link_up(index: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for field in [index, IFF_UP, IFF_UP] {
        body.extend_from_slice(&field.to_ne_bytes());
    }
    body
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, index; then attributes.
fn new_address(index: u32, address: IpAddr, prefix: u8) -> Vec<u8> {
    let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
    let mut body = vec![family(address), prefix, flags, RT_SCOPE_UNIVERSE];
    body.extend_from_slice(&index.to_ne_bytes());
    attribute(&mut body, IFA_LOCAL, &octets(address));
    attribute(&mut body, IFA_ADDRESS, &octets(address));
    body
}

/// `struct rtmsg`: family, lengths, tos, table, protocol, scope, type, flags; then attributes.
fn default_route(index: u32, gateway: IpAddr) -> Vec<u8> {
    let mut body = vec![
        family(gateway),
        0,
        0,
        0,
        RT_TABLE_MAIN,
        RTPROT_STATIC,
        RT_SCOPE_UNIVERSE,
        RTN_UNICAST,
    ];
    body.extend_from_slice(&[0; 4]);
    attribute(&mut body, RTA_GATEWAY, &octets(gateway));
    attribute(&mut body, RTA_OIF, &index.to_ne_bytes());
    body
}

/// Appends a `struct rtattr`; all our values have 4 or 16 bytes, so no padding is needed.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    body.extend_from_slice(&length.to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv6() { AF_INET6 } else { AF_INET }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_lengths_of_the_kernels_structs() {
        assert_eq!(link_up(3).len(), 16);
        let four: IpAddr = "10.0.2.15".parse().unwrap();
        let six: IpAddr = "fec0::15".parse().unwrap();
        assert_eq!(new_address(2, four, 24).len(), 8 + 8 + 8);
        assert_eq!(new_address(2, six, 64).len(), 8 + 20 + 20);
        assert_eq!(default_route(2, four).len(), 12 + 8 + 8);
        let whole = message(RTM_NEWLINK, 5, &link_up(3)).unwrap();
        assert_eq!(whole[..8], [32, 0, 0, 0, 16, 0, 5, 0]);
    }

    #[test]
    fn acknowledgements_carry_negative_error_numbers() {
        let answer =
            |error: i32| [&[36, 0, 0, 0, 2, 0, 0, 0][..], &[0; 8], &error.to_ne_bytes()].concat();
        assert!(acknowledgement(&answer(0)).is_ok());
        assert_eq!(acknowledgement(&answer(-17)).unwrap_err().raw_os_error(), Some(17));
        assert!(acknowledgement(&[]).is_err());
    }

    /// Works without privileges: the kernel answers that they are missing, or does it.
    #[test]
    fn the_kernel_understands_the_requests() {
        let socket = RouteSocket::open().unwrap();
        let loopback = socket.index("lo").unwrap();
        let outcome = socket.bring_up(loopback);
        assert!(
            outcome.is_ok()
                || outcome.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        );
        assert!(socket.index("nosuch0").is_err());
    }
}
