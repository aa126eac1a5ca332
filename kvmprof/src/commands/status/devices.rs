//! The lines about the machine's virtio devices.

use kvmprof_recording::status::{
    DiskStatus, EntropyStatus, FolderStatus, MachineStatus, NetworkStatus, VirtioStatus,
    VsockStatus,
};

use crate::commands::units::format_memory;

/// The lines about all devices, a row for each kind.
pub(super) fn device_lines(machine: &MachineStatus) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(machine.networks.iter().flat_map(network_lines));
    lines.extend(machine.folders.iter().flat_map(folder_lines));
    lines.extend(machine.vsock.iter().flat_map(vsock_lines));
    lines.extend(machine.entropy.iter().map(entropy_line));
    lines.extend(machine.virtio.iter().flat_map(console_lines));
    lines.extend(machine.disks.iter().flat_map(disk_lines));
    lines
}

fn entropy_line(entropy: &EntropyStatus) -> String {
    format!(
        "entropy    {} bytes in {} requests; {} queue faults, {} errors of the host",
        entropy.bytes, entropy.requests, entropy.queue_faults, entropy.source_errors,
    )
}

fn console_lines(virtio: &VirtioStatus) -> Vec<String> {
    let device = format!(
        "virtio     {} resets, {} refused queues, {} control faults",
        virtio.resets, virtio.refused_queues, virtio.control_faults,
    );
    let ports = virtio.ports.iter().map(|port| {
        format!(
            "  {:<9} {} queue faults, {} protocol faults",
            port.name, port.queue_faults, port.protocol_faults,
        )
    });
    std::iter::once(device).chain(ports).collect()
}

fn disk_lines(disk: &DiskStatus) -> [String; 2] {
    let counts = &disk.counts;
    let readonly = if disk.readonly { ", readonly" } else { "" };
    [
        format!(
            "disk       {}, {}, {}{readonly}",
            disk.path,
            disk.format,
            format_memory(disk.bytes),
        ),
        format!(
            "           {} reads ({} bytes), {} writes ({} bytes), {} flushes, {} discards, {} zeroings, {} errors, {} refused, {} queue faults",
            counts.reads,
            counts.bytes_read,
            counts.writes,
            counts.bytes_written,
            counts.flushes,
            counts.discards,
            counts.zeroings,
            counts.errors,
            counts.refused,
            counts.queue_faults,
        ),
    ]
}

fn network_lines(network: &NetworkStatus) -> Vec<String> {
    let state = if network.up { "up" } else { "down" };
    let NetworkStatus { received, sent, .. } = network;
    vec![
        format!(
            "network    {}, {}, link {state}, {} times lost",
            network.peer, network.mac, network.link_losses,
        ),
        format!(
            "  received {} frames, {} bytes; {} dropped",
            received.frames, received.bytes, received.dropped,
        ),
        format!(
            "  sent     {} frames, {} bytes; {} dropped, {} malformed",
            sent.frames, sent.bytes, sent.dropped, sent.malformed,
        ),
        format!(
            "           {} resets, {} refused queues, {} queue faults, {} faults of the other end",
            network.resets, network.refused_queues, network.queue_faults, network.peer_faults,
        ),
    ]
}

fn folder_lines(folder: &FolderStatus) -> Vec<String> {
    let readonly = if folder.readonly { ", readonly" } else { "" };
    let mut lines = vec![
        format!(
            "folder     {}, {}{readonly}, {}",
            folder.tag, folder.source, folder.state,
        ),
        format!(
            "           {} failures, {} restarts, {} refused requests, {} resets, {} refused queues, {} queue faults",
            folder.failures,
            folder.restarts,
            folder.refused_requests,
            folder.resets,
            folder.refused_queues,
            folder.queue_faults,
        ),
    ];
    if let Some(failure) = &folder.failure {
        lines.push(format!("           failed last because {failure}"));
    }
    lines
}

fn vsock_lines(vsock: &VsockStatus) -> [String; 4] {
    [
        format!(
            "vsock      CID {}, {}, {} connections",
            vsock.cid, vsock.socket, vsock.connections
        ),
        format!(
            "  to guest {} connections, {} refused, {} turned away; {} bytes",
            vsock.counts.host_connections,
            vsock.counts.host_refused,
            vsock.clients_turned_away,
            vsock.counts.received_bytes,
        ),
        format!(
            "  of guest {} connections, {} refused; {} bytes",
            vsock.counts.guest_connections, vsock.counts.guest_refused, vsock.counts.sent_bytes,
        ),
        format!(
            "           {} resets, {} refused queues, {} queue faults, {} malformed, {} beyond credit, {} of no connection",
            vsock.resets,
            vsock.refused_queues,
            vsock.counts.queue_faults,
            vsock.counts.malformed,
            vsock.counts.credit_violations,
            vsock.counts.unknown,
        ),
    ]
}
