//! Finds the compressed kernel in a bzImage (`Documentation/arch/x86/boot.rst`).

use super::super::IntrospectionError;
use crate::bytes::{u8_at, u16_at, u32_at};

/// Sectors of the real-mode part, without the boot sector; 0 means 4.
const SETUP_SECTS: usize = 0x1f1;
/// The signature "HdrS".
const HEADER: usize = 0x202;
/// The boot protocol's version, 0xMMmm.
const VERSION: usize = 0x206;
/// The payload's start, in bytes from the protected-mode part (protocol 2.08).
const PAYLOAD_OFFSET: usize = 0x248;
/// The payload's length, in bytes (protocol 2.08).
const PAYLOAD_LENGTH: usize = 0x24c;
/// First protocol version with the two fields above.
const FIRST_WITH_PAYLOAD: u16 = 0x0208;
/// Bytes of a sector.
const SECTOR: u64 = 512;

/// The compressed kernel within a bzImage.
pub fn payload(file: &[u8]) -> Result<&[u8], IntrospectionError> {
    if file.get(HEADER..HEADER + 4) != Some(b"HdrS".as_slice()) {
        return Err(IntrospectionError::NotAKernel);
    }
    let version = u16_at(file, VERSION).ok_or(IntrospectionError::NotAKernel)?;
    if version < FIRST_WITH_PAYLOAD {
        return Err(IntrospectionError::OldBootProtocol(version));
    }
    let fields = || {
        Some((
            u8_at(file, SETUP_SECTS)?,
            u32_at(file, PAYLOAD_OFFSET)?,
            u32_at(file, PAYLOAD_LENGTH)?,
        ))
    };
    let (sectors, offset, length) = fields().ok_or(IntrospectionError::NotAKernel)?;
    if length == 0 {
        return Err(IntrospectionError::NoPayload);
    }
    let sectors = if sectors == 0 { 4 } else { u64::from(sectors) };
    let start = (sectors + 1) * SECTOR + u64::from(offset);
    let end = start + u64::from(length);
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    range.and_then(|(start, end)| file.get(start..end)).ok_or(
        IntrospectionError::PayloadOutsideFile {
            end,
            length: file.len() as u64,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bzimage(version: u16, sectors: u8, offset: u32, payload: &[u8]) -> Vec<u8> {
        let setup = if sectors == 0 {
            4
        } else {
            usize::from(sectors)
        };
        let mut file = vec![0; (setup + 1) * 512 + offset as usize];
        file[SETUP_SECTS] = sectors;
        file[HEADER..HEADER + 4].copy_from_slice(b"HdrS");
        file[VERSION..VERSION + 2].copy_from_slice(&version.to_le_bytes());
        file[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&offset.to_le_bytes());
        let length = u32::try_from(payload.len()).unwrap();
        file[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        file.extend_from_slice(payload);
        file
    }

    #[test]
    fn finds_the_payload() {
        for sectors in [0, 1, 39] {
            assert_eq!(
                payload(&bzimage(0x20f, sectors, 700, b"kernel")).unwrap(),
                b"kernel"
            );
        }
    }

    #[test]
    fn refuses_other_files() {
        for file in [&b""[..], b"#!/bin/sh\n", &[0; 4096]] {
            assert!(matches!(payload(file), Err(IntrospectionError::NotAKernel)));
        }
    }

    #[test]
    fn a_missing_payload_is_an_error() {
        let file = bzimage(0x20f, 4, 0, b"");
        assert!(matches!(payload(&file), Err(IntrospectionError::NoPayload)));
    }

    #[test]
    fn refuses_old_protocols_and_short_files() {
        assert_eq!(
            payload(&bzimage(0x207, 4, 0, b"x"))
                .unwrap_err()
                .to_string(),
            "The bzImage's boot protocol 2.07 doesn't say where the kernel is: 2.08 or newer is needed"
        );
        let mut short = bzimage(0x20f, 4, 0, b"kernel");
        short.pop();
        assert!(matches!(
            payload(&short),
            Err(IntrospectionError::PayloadOutsideFile {
                end: 2566,
                length: 2565
            })
        ));
    }
}
