//! The network: loopback, and interfaces with fixed addresses.

use crate::netlink::RouteSocket;
use proto::guest::Interface;
use std::io;
use std::net::IpAddr;

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The kernel has no route socket.
    #[error("cannot open a route socket")]
    Open(#[source] io::Error),
    /// An interface cannot be brought up.
    #[error("cannot bring up `{name}`")]
    BringUp {
        /// Its name.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// An address is malformed or refused.
    #[error("cannot give `{name}` the address `{address}`")]
    Address {
        /// Name of the interface.
        name: String,
        /// The address.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A gateway is malformed or refused.
    #[error("cannot route through `{gateway}` on `{name}`")]
    Gateway {
        /// Name of the interface.
        name: String,
        /// The gateway.
        gateway: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Brings up loopback (whose addresses the kernel adds itself) and these interfaces.
///
/// # Errors
/// [`NetworkError`] at the first that fails.
pub fn bring_up(interfaces: &[Interface]) -> Result<(), NetworkError> {
    let socket = RouteSocket::open().map_err(NetworkError::Open)?;
    bring_up_link(&socket, "lo")?;
    interfaces.iter().try_for_each(|interface| configure(&socket, interface))
}

fn bring_up_link(socket: &RouteSocket, name: &str) -> Result<u32, NetworkError> {
    let up = || {
        let index = socket.index(name)?;
        socket.bring_up(index).map(|()| index)
    };
    up().map_err(|source| NetworkError::BringUp { name: name.into(), source })
}

fn configure(socket: &RouteSocket, interface: &Interface) -> Result<(), NetworkError> {
    let name = &interface.name;
    let index = bring_up_link(socket, name)?;
    for address in &interface.addresses {
        parse_address(address)
            .and_then(|(ip, prefix)| socket.add_address(index, ip, prefix))
            .map_err(|source| NetworkError::Address {
                name: name.clone(),
                address: address.clone(),
                source,
            })?;
    }
    for gateway in &interface.gateways {
        let ip = gateway.parse::<IpAddr>().map_err(|_| io::ErrorKind::InvalidInput.into());
        ip.and_then(|ip| socket.add_default_route(index, ip)).map_err(|source| {
            NetworkError::Gateway { name: name.clone(), gateway: gateway.clone(), source }
        })?;
    }
    Ok(())
}

/// Parses `address/prefix`; without a prefix the address stands for itself alone.
fn parse_address(text: &str) -> io::Result<(IpAddr, u8)> {
    let (address, prefix) =
        text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let address: IpAddr = address.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let longest = if address.is_ipv6() { 128 } else { 32 };
    let prefix = prefix.map_or(Ok(longest), str::parse).map_err(|_| io::ErrorKind::InvalidInput)?;
    if prefix > longest { Err(io::ErrorKind::InvalidInput.into()) } else { Ok((address, prefix)) }
}

#[cfg(test)]
mod tests {
    use super::parse_address;

    #[test]
    fn addresses_have_a_prefix_that_fits() {
        assert_eq!(parse_address("10.0.2.15/24").unwrap(), ("10.0.2.15".parse().unwrap(), 24));
        assert_eq!(parse_address("::1").unwrap().1, 128);
        for bad in ["", "10.0.2.15/33", "10.0.2/24", "::1/129", "10.0.2.15/", "10.0.2.15/x"] {
            assert!(parse_address(bad).is_err(), "{bad}");
        }
    }
}
