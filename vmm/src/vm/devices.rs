//! The virtio devices that a guest is started with.

use super::{VmConfig, VmError};
use kvmprof_machine::disk::{DISKS_MAX, Disk, DiskError, DiskOptions};
use kvmprof_machine::network::Network;
use kvmprof_machine::virtio::{BlockParts, EntropySource, VirtioParts};
use kvmprof_machine::vsock::VsockParts;
use kvmprof_machine::{VirtioDevices, share};
use kvmprof_profiling::binaries::GuestDisks;
use kvmprof_profiling::profiler::DeviceMonitors;

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
            Network::connect(network, connector)
        })
        .collect();
    let networks = networks?;
    let (names, connector) = (&config.output_names, &config.port_connector);
    let listen = |vsock| VsockParts::listen(vsock, names.as_ref(), connector.as_ref());
    let vsock = config.vsock.as_ref().map(listen).transpose()?;
    let contents = GuestDisks {
        images: disks.iter().map(BlockParts::content).collect(),
    };
    let mut others: Vec<Box<dyn VirtioParts>> = Vec::new();
    // A row for each kind.
    others.extend(boxed(disks));
    others.extend(boxed(networks));
    others.extend(boxed(shares));
    others.extend(boxed(vsock));
    others.extend(boxed([EntropySource::default()]));
    let monitors = others.iter().map(|device| device.monitor()).collect();
    let console = None;
    Ok((VirtioDevices { console, others }, monitors, contents))
}

fn boxed<D: VirtioParts + 'static>(
    devices: impl IntoIterator<Item = D>,
) -> impl Iterator<Item = Box<dyn VirtioParts>> {
    let parts = |device| Box::new(device) as Box<dyn VirtioParts>;
    devices.into_iter().map(parts)
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
