//! Numbers as text: LEB128 (little-endian groups of seven bits) in base64 (RFC 4648).

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Packed numbers.
#[derive(Clone, Debug, Default)]
pub struct PackedNumbers {
    bytes: Vec<u8>,
}

impl PackedNumbers {
    /// Appends a number.
    pub fn push(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(low_bits(number) | 0x80);
            number >>= 7;
        }
        self.bytes.push(low_bits(number));
    }

    /// Appends the difference of two numbers: twice its amount, less one if it is negative.
    pub fn push_difference(&mut self, from: u32, to: u32) {
        if to >= from {
            self.push(u64::from(to - from) * 2);
        } else {
            self.push(u64::from(from - to) * 2 - 1);
        }
    }

    /// The numbers as text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }

    /// Appends the numbers as text.
    pub fn write(&self, text: &mut String) {
        write_base64(&self.bytes, text);
    }
}

/// Appends `bytes` in base64.
pub fn write_base64(bytes: &[u8], text: &mut String) {
    text.reserve(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = bits >> (18 - 6 * place) & 63;
            text.push(if place <= group.len() {
                ALPHABET[digit as usize].into()
            } else {
                '='
            });
        }
    }
}

/// The seven lowest bits.
fn low_bits(number: u64) -> u8 {
    (number & 0x7f).to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_encoded_as_text() {
        let text = |numbers: &[u64]| {
            let mut packed = PackedNumbers::default();
            numbers.iter().for_each(|number| packed.push(*number));
            packed.to_text()
        };
        assert_eq!(text(&[]), "");
        // The examples of RFC 4648, section 10.
        assert_eq!(text(&[0x66]), "Zg==");
        assert_eq!(text(&[0x66, 0x6f]), "Zm8=");
        assert_eq!(text(&[0x66, 0x6f, 0x6f]), "Zm9v");
        // The example of DWARF 5, table 7.8: 12857 is b9 64 + 0x80 in the first.
        assert_eq!(text(&[12_857]), "uWQ=");
        assert_eq!(text(&[u64::MAX]), "////////////AQ==");
    }

    #[test]
    fn differences_have_a_sign() {
        let mut packed = PackedNumbers::default();
        for (from, to) in [(5, 5), (5, 6), (6, 5), (0, 40)] {
            packed.push_difference(from, to);
        }
        assert_eq!(packed.bytes, [0, 2, 1, 80]);
    }
}
