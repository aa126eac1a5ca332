//! The packets' header: 44 bytes, little-endian (section 5.10.6; kernel: `include/uapi/linux/virtio_vsock.h`).

/// Size of the header at the start of each packet, in bytes.
pub const HEADER_SIZE: usize = 44;

/// The host's address (section 5.10.4).
pub const HOST_CID: u64 = 2;
/// The type of stream connections.
pub const TYPE_STREAM: u16 = 1;

/// Flag of SHUTDOWN: the sender will receive no more bytes.
pub const SHUTDOWN_RECEIVE: u32 = 1;
/// Flag of SHUTDOWN: the sender will send no more bytes.
pub const SHUTDOWN_SEND: u32 = 2;
/// Both flags of SHUTDOWN.
pub const SHUTDOWN_BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Operation {
    /// Asks for a connection.
    Request = 1,
    /// Accepts a connection.
    Response = 2,
    /// Refuses a connection, or ends it at once.
    Reset = 3,
    /// Ends one or both directions.
    Shutdown = 4,
    /// Bytes of the stream.
    Data = 5,
    /// Tells the sender's room.
    CreditUpdate = 6,
    /// Asks for a credit update.
    CreditRequest = 7,
}

impl Operation {
    /// The operation with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Reset,
            4 => Self::Shutdown,
            5 => Self::Data,
            6 => Self::CreditUpdate,
            7 => Self::CreditRequest,
            _ => return None,
        })
    }
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The sender's address.
    pub source_cid: u64,
    /// The receiver's address.
    pub destination_cid: u64,
    /// The sender's port.
    pub source_port: u32,
    /// The receiver's port.
    pub destination_port: u32,
    /// Length of the payload after the header, in bytes.
    pub length: u32,
    /// The type of the connection.
    pub kind: u16,
    /// An [`Operation`]'s number.
    pub operation: u16,
    /// Flags of the operation.
    pub flags: u32,
    /// Size of the sender's receive buffer, in bytes (`buf_alloc`).
    pub room: u32,
    /// How many bytes have left that buffer since the connection began, modulo 2^32 (`fwd_cnt`).
    pub forwarded: u32,
}

impl Header {
    /// Reads a header.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_SIZE]) -> Self {
        let mut rest: &[u8] = bytes;
        Self {
            source_cid: u64::from_le_bytes(take(&mut rest)),
            destination_cid: u64::from_le_bytes(take(&mut rest)),
            source_port: u32::from_le_bytes(take(&mut rest)),
            destination_port: u32::from_le_bytes(take(&mut rest)),
            length: u32::from_le_bytes(take(&mut rest)),
            kind: u16::from_le_bytes(take(&mut rest)),
            operation: u16::from_le_bytes(take(&mut rest)),
            flags: u32::from_le_bytes(take(&mut rest)),
            room: u32::from_le_bytes(take(&mut rest)),
            forwarded: u32::from_le_bytes(take(&mut rest)),
        }
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let fields: [&[u8]; 10] = [
            &self.source_cid.to_le_bytes(),
            &self.destination_cid.to_le_bytes(),
            &self.source_port.to_le_bytes(),
            &self.destination_port.to_le_bytes(),
            &self.length.to_le_bytes(),
            &self.kind.to_le_bytes(),
            &self.operation.to_le_bytes(),
            &self.flags.to_le_bytes(),
            &self.room.to_le_bytes(),
            &self.forwarded.to_le_bytes(),
        ];
        let mut bytes = [0; HEADER_SIZE];
        for (byte, value) in bytes.iter_mut().zip(fields.concat()) {
            *byte = value;
        }
        bytes
    }

    /// The packet that ends the connection of this packet, which came from the guest.
    #[must_use]
    pub(super) fn reset(&self) -> Self {
        Self {
            source_cid: self.destination_cid,
            destination_cid: self.source_cid,
            source_port: self.destination_port,
            destination_port: self.source_port,
            kind: self.kind,
            operation: Operation::Reset as u16,
            ..Self::default()
        }
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (first, rest) = bytes.split_first_chunk().unwrap_or((&[0; N], &[]));
    *bytes = rest;
    *first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_layout_of_the_specification() {
        let header = Header {
            source_cid: 3,
            destination_cid: HOST_CID,
            source_port: 0x0102_0304,
            destination_port: 52,
            length: 5,
            kind: TYPE_STREAM,
            operation: Operation::Data as u16,
            flags: 7,
            room: 8,
            forwarded: 9,
        };
        let bytes = header.encode();
        assert_eq!(bytes[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..20], [4, 3, 2, 1]);
        assert_eq!(bytes[24..34], [5, 0, 0, 0, 1, 0, 5, 0, 7, 0]);
        assert_eq!(bytes[36..], [8, 0, 0, 0, 9, 0, 0, 0]);
        assert_eq!(Header::decode(&bytes), header);
    }

    #[test]
    fn operations_have_their_numbers() {
        for number in 0..=u16::MAX {
            let operation = Operation::from_number(number);
            assert_eq!(operation.is_some(), (1..=7).contains(&number));
            assert!(operation.is_none_or(|operation| operation as u16 == number));
        }
    }
}
