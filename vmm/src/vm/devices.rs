//! The virtio devices that a guest is started with.

use super::contained::as_user;
use super::{VmConfig, VmError};
use crate::binaries::GuestDisks;
use crate::disk::{DISKS_MAX, Disk, DiskError, DiskOptions};
use crate::machine::VirtioDevices;
use crate::network::Network;
use crate::profiler::DeviceMonitors;
use crate::share::{self, Share};
use crate::virtio::{BalloonParts, BlockParts, EntropySource, VirtioParts};
use crate::vsock::VsockParts;

/// Makes the devices of `config`, except the console's, with their monitors, and the disks. All files of the host that they need are open
/// afterwards, and none of their threads has been started.
///
/// # Errors
/// An image, an end of a network or a socket's path can't be used.
pub(super) fn virtio_devices(
    config: &VmConfig,
) -> Result<(VirtioDevices, DeviceMonitors, GuestDisks), VmError> {
    let disks = open_disks(&config.disks, config.machine.cpus)?;
    let shares = share::open_all(
        &config.shares,
        config.virtiofsd.as_deref(),
        config.share_helper.as_ref(),
        config.socket_connector.as_ref(),
    )?;
    let networks: Result<Vec<_>, _> = (config.networks.iter())
        .map(|network| {
            let connector = config.socket_connector.as_ref();
            Network::connect(network, config.tap_opener.as_ref(), connector)
        })
        .collect();
    let networks = networks?;
    let listen = |vsock| VsockParts::listen(vsock, config.port_connector.as_ref());
    let vsock = as_user(|| config.vsock.as_ref().map(listen).transpose())?;
    let balloon = config.balloon.then(BalloonParts::default);
    let entropy = EntropySource::default();
    let monitors = DeviceMonitors {
        disks: disks.iter().map(BlockParts::record).collect(),
        networks: networks.iter().map(Network::monitor).collect(),
        folders: shares.iter().map(Share::monitor).collect(),
        balloon: balloon.as_ref().map(BalloonParts::control),
        vsock: vsock.as_ref().map(VsockParts::monitor),
        entropy: Some(entropy.monitor()),
    };
    let contents = GuestDisks {
        images: disks.iter().map(BlockParts::content).collect(),
    };
    let mut others: Vec<Box<dyn VirtioParts>> = Vec::new();
    for disk in disks {
        others.push(Box::new(disk));
    }
    for network in networks {
        others.push(Box::new(network));
    }
    for share in shares {
        others.push(Box::new(share));
    }
    if let Some(vsock) = vsock {
        others.push(Box::new(vsock));
    }
    if let Some(balloon) = balloon {
        others.push(Box::new(balloon));
    }
    others.push(Box::new(entropy));
    let console = None;
    Ok((VirtioDevices { console, others }, monitors, contents))
}

fn open_disks(options: &[DiskOptions], vcpus: u16) -> Result<Vec<BlockParts>, DiskError> {
    if options.len() > DISKS_MAX {
        let asked = options.len();
        return Err(DiskError::TooMany { asked });
    }
    let disks = options.iter().enumerate();
    disks
        .map(|(index, options)| Ok(BlockParts::new(index, Disk::open(options)?, vcpus)))
        .collect()
}
