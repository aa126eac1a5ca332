//! The sockets of the host that a guest's process connects to and makes.

use std::path::PathBuf;

use super::VmConfig;
use kvmprof_machine::network::PeerAddress;
use kvmprof_machine::share::ShareSource;

/// The sockets that the folders and networks of `config` connect to.
pub fn sockets_of_devices(config: &VmConfig) -> Vec<PathBuf> {
    let shares = config
        .shares
        .iter()
        .filter_map(|share| match &share.source {
            ShareSource::Socket(path) => Some(path.clone()),
            ShareSource::Folder { .. } => None,
        });
    let networks = (config.networks.iter()).filter_map(|network| match &network.peer {
        PeerAddress::Socket(path) => Some(path.clone()),
        PeerAddress::Tap(_) => None,
    });
    shares.chain(networks).collect()
}

/// The sockets at which `config` listens.
pub fn sockets_to_make(config: &VmConfig) -> Vec<PathBuf> {
    let vsock = config.vsock.iter().map(|vsock| &vsock.path);
    let all = config.profiling.socket.iter().chain(vsock);
    all.cloned().collect()
}
