//! Unpacks the formats in which the kernel's build can compress a kernel (`init/Kconfig`, KERNEL_GZIP and so on).

use std::io::{self, Read};

use super::super::IntrospectionError;
use crate::bytes::{index_at, u32_at};

/// Maximum memory for unpacking an lzma or xz payload, in KiB. The kernel's build uses dictionaries of up to 128 MiB
/// (`scripts/xz_wrap.sh`).
const LZMA_MEMORY_KIB: u32 = 192 << 10;
/// Maximum unpacked size of one block of the legacy lz4 format, in bytes.
const LZ4_BLOCK: usize = 8 << 20;
/// Magic number of the legacy lz4 format, which the kernel uses.
const LZ4_LEGACY: &[u8] = &[0x02, 0x21, 0x4c, 0x18];

/// Unpacks `payload` to at most `limit` bytes. The format follows from its first bytes.
pub fn decompress(payload: &[u8], limit: u64) -> Result<Vec<u8>, IntrospectionError> {
    let (format, result) = match payload {
        [0x1f, 0x8b, ..] => (
            "gzip",
            bounded(flate2::read::GzDecoder::new(payload), payload, limit),
        ),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", zstd_frame(payload, limit)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => (
            "xz",
            bounded(
                lzma_rust2::XzReader::new_mem_limit(payload, false, LZMA_MEMORY_KIB),
                payload,
                limit,
            ),
        ),
        [b'B', b'Z', b'h', ..] => (
            "bzip2",
            bounded(bzip2::read::BzDecoder::new(payload), payload, limit),
        ),
        [0x5d, 0, 0, ..] => (
            "lzma",
            lzma_rust2::LzmaReader::new_mem_limit(payload, LZMA_MEMORY_KIB, None)
                .and_then(|reader| bounded(reader, payload, limit)),
        ),
        [0x89, b'L', b'Z', b'O', ..] => {
            return Err(IntrospectionError::UnsupportedCompression("lzo"));
        }
        _ if payload.starts_with(LZ4_LEGACY) => ("lz4", lz4_legacy(payload, limit)),
        _ => {
            return Err(IntrospectionError::UnsupportedCompression(
                "an unknown format",
            ));
        }
    };
    match result {
        Ok(unpacked) if unpacked.len() as u64 > limit => Err(IntrospectionError::TooLarge(limit)),
        Ok(unpacked) => Ok(unpacked),
        Err(source) => Err(IntrospectionError::Decompress { format, source }),
    }
}

/// The unpacked size according to the last four bytes of `payload`: gzip writes it there, and the kernel's build
/// appends it to all other formats. It is only a hint for the amount of memory.
fn size_hint(payload: &[u8], limit: u64) -> usize {
    let hint = payload
        .len()
        .checked_sub(4)
        .and_then(|offset| u32_at(payload, offset))
        .unwrap_or(0);
    // A wrong size must not cost much memory, and no kernel compresses better than 1:16.
    let likely = payload.len().saturating_mul(16);
    usize::try_from(u64::from(hint).min(limit)).map_or(0, |hint| hint.min(likely))
}

/// Reads `reader` to its end, but at most one byte more than `limit`.
fn bounded(reader: impl Read, payload: &[u8], limit: u64) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::with_capacity(size_hint(payload, limit));
    reader.take(limit + 1).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

/// Unpacks one zstd frame.
fn zstd_frame(payload: &[u8], limit: u64) -> io::Result<Vec<u8>> {
    // The kernel's build appends the size, which isn't part of the zstd frame. So the end of the single frame has to be
    // found before it is unpacked into memory of the right size.
    let frame_and_size = payload.len().saturating_sub(4);
    let mut whole = vec![0; size_hint(payload, limit)];
    if let Ok(length) = zstd::bulk::decompress_to_buffer(&payload[..frame_and_size], &mut whole) {
        whole.truncate(length);
        return Ok(whole);
    }
    bounded(
        zstd::stream::read::Decoder::new(payload)?.single_frame(),
        payload,
        limit,
    )
}

/// Unpacks the legacy lz4 format: the magic number, then blocks, each after its packed length.
fn lz4_legacy(payload: &[u8], limit: u64) -> io::Result<Vec<u8>> {
    let mut unpacked = vec![0; size_hint(payload, limit)];
    let mut length = 0;
    let mut rest = &payload[LZ4_LEGACY.len()..];
    // The last four bytes are the size that the kernel's build appends.
    while rest.len() > 4 {
        let packed = index_at(rest, 0).unwrap_or(0);
        let Some(block) = rest.get(4..packed.saturating_add(4)) else {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "A block is cut short",
            ));
        };
        rest = &rest[4 + packed..];
        if length as u64 > limit {
            break;
        }
        let mut result = lz4_flex::block::decompress_into(block, &mut unpacked[length..]);
        if result.is_err() && unpacked.len() - length < LZ4_BLOCK {
            unpacked.resize(length + LZ4_BLOCK, 0);
            result = lz4_flex::block::decompress_into(block, &mut unpacked[length..]);
        }
        length += result.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    }
    unpacked.truncate(length);
    // The format has no checksum, so only a wrong size can show damage.
    let announced = u32_at(rest, 0).map(u64::from);
    if length as u64 <= limit && announced != Some(length as u64) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("It unpacks to {length} bytes, which isn't the size at its end"),
        ));
    }
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Compressible test data, longer than several lz4 matches.
    fn kernel() -> Vec<u8> {
        let mut kernel = b"\x7fELF".to_vec();
        for number in 0..20_000_u32 {
            kernel.extend_from_slice(&(number / 7).to_le_bytes());
        }
        kernel
    }

    /// Appends the unpacked size, as the kernel's build does for all formats except gzip.
    fn append_size(mut packed: Vec<u8>, unpacked: &[u8]) -> Vec<u8> {
        packed.extend_from_slice(&u32::try_from(unpacked.len()).unwrap().to_le_bytes());
        packed
    }

    fn gzip(kernel: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(kernel).unwrap();
        encoder.finish().unwrap()
    }

    fn bzip2(kernel: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
        encoder.write_all(kernel).unwrap();
        append_size(encoder.finish().unwrap(), kernel)
    }

    fn zstd(kernel: &[u8]) -> Vec<u8> {
        append_size(zstd::encode_all(kernel, 19).unwrap(), kernel)
    }

    fn xz(kernel: &[u8]) -> Vec<u8> {
        let mut options = lzma_rust2::XzOptions::with_preset(6);
        options.set_check_sum_type(lzma_rust2::CheckType::Crc32);
        options.prepend_pre_filter(lzma_rust2::FilterType::BcjX86, 0);
        let mut encoder = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
        encoder.write_all(kernel).unwrap();
        append_size(encoder.finish().unwrap(), kernel)
    }

    fn lzma(kernel: &[u8]) -> Vec<u8> {
        let options = lzma_rust2::LzmaOptions::with_preset(6);
        let mut encoder =
            lzma_rust2::LzmaWriter::new_use_header(Vec::new(), &options, None).unwrap();
        encoder.write_all(kernel).unwrap();
        append_size(encoder.finish().unwrap(), kernel)
    }

    fn lz4(kernel: &[u8]) -> Vec<u8> {
        let mut packed = LZ4_LEGACY.to_vec();
        for block in kernel.chunks(LZ4_BLOCK) {
            let block = lz4_flex::block::compress(block);
            packed.extend_from_slice(&u32::try_from(block.len()).unwrap().to_le_bytes());
            packed.extend_from_slice(&block);
        }
        append_size(packed, kernel)
    }

    type Packer = fn(&[u8]) -> Vec<u8>;

    const PACKERS: [Packer; 6] = [gzip, bzip2, zstd, xz, lzma, lz4];

    /// Maximum number of unpacked bytes in the tests.
    const LIMIT: u64 = 2 << 20;

    #[test]
    fn a_wrong_size_at_the_end_is_tolerated_but_of_lz4() {
        let kernel = kernel();
        for wrong in [0_u32, 17, u32::MAX] {
            let [zstd, lz4] = [zstd, lz4].map(|packer: Packer| {
                let mut payload = packer(&kernel);
                let end = payload.len() - 4;
                payload[end..].copy_from_slice(&wrong.to_le_bytes());
                decompress(&payload, LIMIT)
            });
            assert_eq!(zstd.unwrap(), kernel);
            let error = lz4.unwrap_err().to_string();
            assert!(error.contains("lz4"), "{error}");
        }
    }

    #[test]
    fn unpacks_several_lz4_blocks() {
        let kernel: Vec<u8> = (0..LZ4_BLOCK * 2 + 5)
            .map(|index| index.to_le_bytes()[1])
            .collect();
        assert_eq!(decompress(&lz4(&kernel), LIMIT * 10).unwrap(), kernel);
    }

    #[test]
    fn stops_at_the_bound() {
        let kernel = kernel();
        let length = kernel.len() as u64;
        for packer in PACKERS {
            let payload = packer(&kernel);
            assert_eq!(decompress(&payload, length).unwrap(), kernel);
            assert!(matches!(
                decompress(&payload, length - 1),
                Err(IntrospectionError::TooLarge(limit)) if limit == length - 1
            ));
        }
    }

    #[test]
    fn names_unsupported_formats() {
        let error = decompress(b"\x89LZO\0\r\n\x1a\n", LIMIT).unwrap_err();
        assert!(error.to_string().contains("lzo"), "{error}");
        assert!(decompress(b"", LIMIT).is_err());
    }
}
