//! The header before each frame in a queue (section 5.1.6), and the offloads that were negotiated.

use virtio_bindings::bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_HDR_F_DATA_VALID, VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_ECN,
    VIRTIO_NET_HDR_GSO_NONE, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6,
};

/// Size of the header in bytes, with `num_buffers`.
pub const HEADER_SIZE: usize = 12;
/// Size of an Ethernet header in bytes: no frame is shorter.
pub const FRAME_MIN: usize = 14;
/// Maximum size of a frame in bytes: the longest IP packet with an Ethernet header and a VLAN tag.
pub const FRAME_MAX: usize = 18 + 65535;

/// The offloads of one direction: work that the sender may leave to the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Checksums may be incomplete.
    pub checksum: bool,
    /// TCP segments over IPv4 may be longer than the link's packets.
    pub tso4: bool,
    /// TCP segments over IPv6 may be longer than the link's packets.
    pub tso6: bool,
    /// Long TCP segments may have ECN set.
    pub ecn: bool,
}

impl Offloads {
    /// All offloads.
    pub const ALL: Self = Self {
        checksum: true,
        tso4: true,
        tso6: true,
        ecn: true,
    };

    /// The offloads that the driver accepts in frames that it receives, by its features.
    #[must_use]
    pub fn of_received(features: u64) -> Self {
        let bits = [
            VIRTIO_NET_F_GUEST_CSUM,
            VIRTIO_NET_F_GUEST_TSO4,
            VIRTIO_NET_F_GUEST_TSO6,
            VIRTIO_NET_F_GUEST_ECN,
        ];
        Self::from_features(features, bits)
    }

    /// The offloads that the driver may use in frames that it sends, by its features.
    #[must_use]
    pub fn of_sent(features: u64) -> Self {
        let bits = [
            VIRTIO_NET_F_CSUM,
            VIRTIO_NET_F_HOST_TSO4,
            VIRTIO_NET_F_HOST_TSO6,
            VIRTIO_NET_F_HOST_ECN,
        ];
        Self::from_features(features, bits)
    }

    /// The feature bits that offer these offloads in both directions.
    #[must_use]
    pub fn features(self) -> u64 {
        let bit = |offered: bool, [received, sent]: [u32; 2]| {
            if offered {
                1 << received | 1 << sent
            } else {
                0
            }
        };
        bit(self.checksum, [VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_CSUM])
            | bit(self.tso4, [VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_HOST_TSO4])
            | bit(self.tso6, [VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_TSO6])
            | bit(self.ecn, [VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_HOST_ECN])
    }

    fn from_features(features: u64, [checksum, tso4, tso6, ecn]: [u32; 4]) -> Self {
        let has = |bit: u32| features >> bit & 1 == 1;
        // The other features depend on checksums (section 5.1.3.1).
        let checksum = has(checksum);
        let tso4 = checksum && has(tso4);
        let tso6 = checksum && has(tso6);
        Self {
            checksum,
            tso4,
            tso6,
            ecn: has(ecn) && (tso4 || tso6),
        }
    }

    /// Checks a frame's header against these offloads, and clears the fields that the receiver doesn't use. False if the header uses an offload
    /// that wasn't negotiated, or points outside a frame of `length` bytes.
    pub(super) fn check(self, header: &mut [u8; HEADER_SIZE], length: usize) -> bool {
        const ECN: u8 = low_byte(VIRTIO_NET_HDR_GSO_ECN);
        const NONE: u8 = low_byte(VIRTIO_NET_HDR_GSO_NONE);
        const TCPV4: u8 = low_byte(VIRTIO_NET_HDR_GSO_TCPV4);
        const TCPV6: u8 = low_byte(VIRTIO_NET_HDR_GSO_TCPV6);
        let [
            flags,
            segmentation,
            _,
            _,
            _,
            _,
            start0,
            start1,
            offset0,
            offset1,
            buffers @ ..,
        ] = header;
        let incomplete = *flags & low_byte(VIRTIO_NET_HDR_F_NEEDS_CSUM) != 0;
        let known = low_byte(VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID);
        *flags &= if self.checksum { known } else { 0 };
        *buffers = [0, 0];
        let start = u16::from_le_bytes([*start0, *start1]);
        let offset = u16::from_le_bytes([*offset0, *offset1]);
        let end = usize::from(start) + usize::from(offset) + 2;
        if incomplete && (!self.checksum || end > length) {
            return false;
        }
        let kind = match *segmentation & !ECN {
            NONE => return *segmentation == NONE,
            TCPV4 => self.tso4,
            TCPV6 => self.tso6,
            _ => false,
        };
        // The side that splits a segment computes the checksums.
        kind && incomplete && (*segmentation & ECN == 0 || self.ecn)
    }
}

/// The constants of the header's 8-bit fields.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the constants are below 256"
)]
const fn low_byte(value: u32) -> u8 {
    value as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with these flags, segmentation, start and offset of the checksum.
    fn header(flags: u8, segmentation: u8, start: u16, offset: u16) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[0] = flags;
        bytes[1] = segmentation;
        bytes[6..8].copy_from_slice(&start.to_le_bytes());
        bytes[8..10].copy_from_slice(&offset.to_le_bytes());
        bytes[10] = 7;
        bytes
    }

    #[test]
    fn only_negotiated_offloads_pass() {
        let none = Offloads::default();
        let passes = |offloads: Offloads, mut bytes| offloads.check(&mut bytes, 60);
        assert!(passes(none, header(0, 0, 0, 0)));
        assert!(passes(none, header(2, 0, 0, 0)));
        assert!(!passes(none, header(1, 0, 34, 6)));
        assert!(passes(Offloads::ALL, header(1, 0, 34, 6)));
        assert!(passes(Offloads::ALL, header(1, 1, 34, 16)));
        assert!(passes(Offloads::ALL, header(1, 0x84, 54, 4)));
        assert!(!passes(Offloads::ALL, header(0, 1, 34, 16)));
        assert!(!passes(Offloads::ALL, header(1, 3, 34, 6)));
        assert!(!passes(Offloads::ALL, header(1, 0x80, 34, 6)));
        let without_tso = Offloads {
            checksum: true,
            ..none
        };
        assert!(!passes(without_tso, header(1, 1, 34, 16)));
        let without_ecn = Offloads {
            ecn: false,
            ..Offloads::ALL
        };
        assert!(passes(without_ecn, header(1, 1, 34, 16)));
        assert!(!passes(without_ecn, header(1, 0x81, 34, 16)));
    }

    #[test]
    fn checksums_lie_inside_the_frame() {
        let check = |start, offset| Offloads::ALL.check(&mut header(1, 0, start, offset), 60);
        assert!(check(34, 24));
        assert!(!check(34, 25));
        assert!(!check(u16::MAX, u16::MAX));
    }

    #[test]
    fn unknown_flags_and_the_number_of_buffers_are_cleared() {
        let mut bytes = header(0xfe, 0, 0, 0);
        assert!(Offloads::ALL.check(&mut bytes, 60));
        assert_eq!((bytes[0], bytes[10]), (2, 0));
        let mut bytes = header(0xfe, 0, 0, 0);
        assert!(Offloads::default().check(&mut bytes, 60));
        assert_eq!((bytes[0], bytes[10]), (0, 0));
    }

    #[test]
    fn features_map_to_offloads() {
        let features = Offloads::ALL.features();
        assert_eq!(Offloads::of_received(features), Offloads::ALL);
        assert_eq!(Offloads::of_sent(features), Offloads::ALL);
        assert_eq!(Offloads::default().features(), 0);
        // TSO without checksums isn't.
        let tso = features & !(1 << VIRTIO_NET_F_CSUM);
        assert_eq!(Offloads::of_sent(tso), Offloads::default());
        assert_eq!(Offloads::of_received(tso), Offloads::ALL);
    }
}
