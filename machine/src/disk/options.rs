//! The options of a disk: `PATH[,readonly][,format=raw|qcow2][,serial=S][,backing=anywhere]`.

use std::path::PathBuf;
use std::str::FromStr;

use kvmprof_devices::virtio::block::SERIAL_MAX;
use thiserror::Error;

/// The format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFormat {
    /// The bytes of the disk.
    Raw,
    /// QEMU's copy-on-write format, version 2 or 3.
    Qcow2,
}

impl DiskFormat {
    /// The format's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// Where backing files of a qcow2 image may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// In the image's folder, or in folders below it.
    #[default]
    SameFolder,
    /// Anywhere that kvmprof can read.
    Anywhere,
}

/// The options of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// The path of the image.
    pub path: PathBuf,
    /// Whether the guest can't write it.
    pub readonly: bool,
    /// The image's format. `None` means raw; an image that looks like another format is refused then.
    pub format: Option<DiskFormat>,
    /// The serial number: at most 20 printable ASCII characters.
    pub serial: String,
    /// Where backing files may be.
    pub backing: Backing,
}

/// Why a text isn't the options of a disk.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InvalidDisk {
    /// There is no path.
    #[error("a disk needs the path of its image")]
    NoPath,
    /// An unknown word.
    #[error(
        "'{0}' is no option of a disk: there are readonly, format=raw, format=qcow2, serial=S and backing=anywhere (a comma in the path is written twice)"
    )]
    UnknownOption(String),
    /// A serial number that the guest couldn't read.
    #[error("'{0}' is no serial number: it must have 1 to {SERIAL_MAX} printable ASCII characters")]
    Serial(String),
}

impl FromStr for DiskOptions {
    type Err = InvalidDisk;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = split(text).into_iter();
        let path = words.next().filter(|path| !path.is_empty());
        let mut disk = Self {
            path: path.ok_or(InvalidDisk::NoPath)?.into(),
            readonly: false,
            format: None,
            serial: String::new(),
            backing: Backing::default(),
        };
        for word in words {
            match word.split_once('=') {
                None if word == "readonly" => disk.readonly = true,
                Some(("format", "raw")) => disk.format = Some(DiskFormat::Raw),
                Some(("format", "qcow2")) => disk.format = Some(DiskFormat::Qcow2),
                Some(("backing", "anywhere")) => disk.backing = Backing::Anywhere,
                Some(("serial", serial)) => disk.serial = checked_serial(serial)?,
                _ => return Err(InvalidDisk::UnknownOption(word)),
            }
        }
        Ok(disk)
    }
}

fn checked_serial(serial: &str) -> Result<String, InvalidDisk> {
    let printable = serial
        .bytes()
        .all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if printable && (1..=SERIAL_MAX).contains(&serial.len()) {
        Ok(serial.to_owned())
    } else {
        Err(InvalidDisk::Serial(serial.to_owned()))
    }
}

/// Splits at single commas. Two commas are one comma of a word.
fn split(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let is_end = character == ',' && characters.next_if_eq(&',').is_none();
        match words.last_mut() {
            Some(word) if !is_end => word.push(character),
            _ => words.push(String::new()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_alone_is_a_disk_that_can_be_written() {
        let disk: DiskOptions = "/images/root.img".parse().unwrap();
        assert_eq!(disk.path, PathBuf::from("/images/root.img"));
        assert_eq!((disk.readonly, disk.format), (false, None));
        let rest = (disk.serial.as_str(), disk.backing);
        assert_eq!(rest, ("", Backing::SameFolder));
    }

    #[test]
    fn options_are_separated_by_commas() {
        let text = "a,,b.img,readonly,format=qcow2,serial=root disk,backing=anywhere";
        let disk: DiskOptions = text.parse().unwrap();
        assert_eq!(disk.path, PathBuf::from("a,b.img"));
        let format = Some(DiskFormat::Qcow2);
        assert_eq!((disk.readonly, disk.format), (true, format));
        let rest = (disk.serial.as_str(), disk.backing);
        assert_eq!(rest, ("root disk", Backing::Anywhere));
        let raw: DiskOptions = "x,format=raw".parse().unwrap();
        assert_eq!(raw.format.map(DiskFormat::name), Some("raw"));
    }

    #[test]
    fn invalid_settings_are_refused() {
        let refused = |text: &str| text.parse::<DiskOptions>().unwrap_err();
        assert_eq!(refused(""), InvalidDisk::NoPath);
        assert_eq!(refused(",readonly"), InvalidDisk::NoPath);
        let words = [
            "ro",
            "",
            "format=vmdk",
            "readonly=1",
            "backing=/etc",
            "serial",
        ];
        for word in words {
            let error = refused(&format!("x,{word}"));
            assert_eq!(error, InvalidDisk::UnknownOption(word.to_owned()));
        }
        for serial in ["", "123456789012345678901", "a\tb", "ä"] {
            let error = refused(&format!("x,serial={serial}"));
            assert_eq!(error, InvalidDisk::Serial(serial.to_owned()));
        }
    }
}
