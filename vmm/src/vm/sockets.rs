//! The sockets of the host that a guest's devices connect to.

use kvmprof_machine::connector::AllowedSockets;
use kvmprof_machine::network::{NetworkConfig, PeerAddress};
use kvmprof_machine::share::{ShareOptions, ShareSource};
use kvmprof_machine::vsock::VsockConfig;

/// The sockets of these folders and networks.
pub fn sockets_of_devices(shares: &[ShareOptions], networks: &[NetworkConfig]) -> AllowedSockets {
    let shares = shares.iter().filter_map(|share| match &share.source {
        ShareSource::Socket(path) => Some(path.clone()),
        ShareSource::Folder { .. } => None,
    });
    let networks = networks.iter().filter_map(|network| match &network.peer {
        PeerAddress::Socket(path) => Some(path.clone()),
        PeerAddress::Tap(_) => None,
    });
    AllowedSockets::at(shares.chain(networks))
}

/// The sockets to which the guest's socket device leads.
pub fn sockets_of_ports(vsock: Option<&VsockConfig>) -> AllowedSockets {
    AllowedSockets::of_ports(vsock.map(|vsock| vsock.path.clone()))
}
