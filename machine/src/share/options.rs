//! The value of `--share`: `DIR=TAG[,readonly]` or `socket=PATH,tag=TAG`.

use std::path::PathBuf;
use std::str::FromStr;

use kvmprof_devices::virtio::fs::TAG_MAX;
use thiserror::Error;

/// Maximum number of shared folders of a guest.
pub const SHARES_MAX: usize = 16;

/// The source of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareSource {
    /// A folder of this host, for which virtiofsd is started.
    Folder {
        /// Its path.
        path: PathBuf,
        /// Whether the guest can't change it.
        readonly: bool,
    },
    /// The socket of a vhost-user program that runs already.
    Socket(PathBuf),
}

/// A folder that the guest is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareOptions {
    /// The source of its files.
    pub source: ShareSource,
    /// Its name in the guest (the device's tag): 1 to 36 bytes.
    pub tag: String,
}

/// Why a value of `--share` can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InvalidShare {
    /// The folder or the tag is missing.
    #[error(
        "'{0}' has to be a folder and its name in the guest: DIR=TAG, DIR=TAG,readonly or socket=PATH,tag=TAG"
    )]
    Form(String),
    /// An option is unknown.
    #[error("'{0}' is no option of a shared folder: the only option is readonly")]
    UnknownOption(String),
    /// The tag has characters that it may not have, or is too long.
    #[error(
        "'{0}' is no tag: it must have 1 to {TAG_MAX} characters, which are letters, digits, '.', '_' and '-'"
    )]
    Tag(String),
}

impl FromStr for ShareOptions {
    type Err = InvalidShare;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || InvalidShare::Form(text.to_owned());
        if let Some(rest) = text.strip_prefix("socket=") {
            let (path, tag) = rest.rsplit_once(",tag=").ok_or_else(form)?;
            if path.is_empty() {
                return Err(form());
            }
            return Ok(Self {
                source: ShareSource::Socket(path.into()),
                tag: checked_tag(tag)?,
            });
        }
        let (path, rest) = text.rsplit_once('=').ok_or_else(form)?;
        if path.is_empty() {
            return Err(form());
        }
        let (tag, readonly) = match rest.split_once(',') {
            None => (rest, false),
            Some((tag, "readonly")) => (tag, true),
            Some((_, word)) => return Err(InvalidShare::UnknownOption(word.to_owned())),
        };
        let path = path.into();
        Ok(Self {
            source: ShareSource::Folder { path, readonly },
            tag: checked_tag(tag)?,
        })
    }
}

/// Checks a tag. Tags are arguments of mount(8) and in files of the guest's /sys, so characters with a special meaning there aren't
/// allowed.
fn checked_tag(tag: &str) -> Result<String, InvalidShare> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if tag.bytes().all(plain) && (1..=TAG_MAX).contains(&tag.len()) {
        Ok(tag.to_owned())
    } else {
        Err(InvalidShare::Tag(tag.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_a_name_in_the_guest() {
        let share: ShareOptions = "/a=b,c=work".parse().unwrap();
        let source = |path: &str, readonly| ShareSource::Folder {
            path: path.into(),
            readonly,
        };
        assert_eq!(share.source, source("/a=b,c", false));
        assert_eq!(share.tag, "work");
        let share: ShareOptions = "src=a.b_c-1,readonly".parse().unwrap();
        assert_eq!(share.source, source("src", true));
        assert_eq!(share.tag, "a.b_c-1");
    }

    #[test]
    fn a_running_daemon_is_found_by_its_socket() {
        let share: ShareOptions = "socket=/run/a,tag=b,tag=work".parse().unwrap();
        assert_eq!(share.source, ShareSource::Socket("/run/a,tag=b".into()));
        assert_eq!(share.tag, "work");
    }

    #[test]
    fn invalid_settings_are_refused() {
        let refused = |text: &str| text.parse::<ShareOptions>().unwrap_err();
        for text in ["", "/home", "=tag", "socket=/run/a", "socket=,tag=a"] {
            assert_eq!(refused(text), InvalidShare::Form(text.to_owned()));
        }
        let long = "t".repeat(37);
        for tag in ["", "a b", "a/b", "ä", &long] {
            let error = refused(&format!("/home={tag}"));
            assert_eq!(error, InvalidShare::Tag(tag.to_owned()));
        }
        let error = refused("/home=tag,rw");
        assert_eq!(error, InvalidShare::UnknownOption("rw".to_owned()));
    }
}
