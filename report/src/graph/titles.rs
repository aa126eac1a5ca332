//! Titles and subtitles of pictures.

use std::ffi::OsStr;
use std::path::Path;

use kvmprof_recording::file::{Contents, KernelInfo, RecordingInfo};

use crate::profile::{Profile, Weight};
use crate::text::utc;

/// Maximum number of characters of a name or a release in a title, which is that of a release (`__NEW_UTS_LEN`).
const LONGEST: usize = 64;
/// Number of characters of a build id in a title.
const BUILD_ID: usize = 12;

/// The default title for `profile`: its kernel's file, release and build id, its rate, and its start, if the recording has them. For several
/// recordings it has the properties of the first one.
pub fn title(profile: &Profile) -> String {
    let parts = title_of(&profile.contents);
    match profile.merged.len() {
        0 => parts,
        1 => format!("{parts}, and another recording"),
        others => format!("{parts}, and {others} other recordings"),
    }
}

/// The same for a recording with these `contents`.
pub fn title_of(contents: &Contents) -> String {
    let info = &contents.info;
    let mut parts = vec![kernel(info, contents.kernel.as_ref()), info.rate()];
    parts.extend(utc(info.began_ns));
    parts.join(", ")
}

/// The kernel, such as `vmlinuz 6.12.43 (build id 0f1e2d3c4b5a)`.
fn kernel(info: &RecordingInfo, kernel: Option<&KernelInfo>) -> String {
    let file = Path::new(&info.kernel).file_name().and_then(OsStr::to_str);
    let mut text = begin_of(file.unwrap_or("A guest"), LONGEST).to_owned();
    let Some(kernel) = kernel else {
        return text;
    };
    let release = begin_of(&kernel.release, LONGEST);
    // Distributions name the files by their releases.
    if !text.contains(release) {
        text += " ";
        text += release;
    }
    let build_id = begin_of(&kernel.build_id, BUILD_ID);
    if !build_id.is_empty() {
        text += &format!(" (build id {build_id})");
    }
    text
}

/// The first characters of `text`, at most this number.
fn begin_of(text: &str, characters: usize) -> &str {
    let end = text.char_indices().nth(characters);
    end.map_or(text, |(end, _)| &text[..end])
}

/// The account of `profile`'s ticks, as a line of text.
pub fn account(profile: &Profile) -> String {
    let account = profile.account();
    let info = &profile.contents.info;
    let mut text = match info.event {
        None => format!(
            "{} and {} at {}; {} stolen, {} lost",
            counted(account.samples, "sample"),
            counted(account.idle, "idle tick"),
            info.rate(),
            account.stolen,
            account.lost
        ),
        Some(event) => format!(
            "{}: {}{}; {} lost",
            counted(account.samples, "sample"),
            event.describe(),
            if Weight::of_tick(info).quantity.is_time() {
                ""
            } else {
                ", whatever time it took"
            },
            account.lost
        ),
    };
    if account.ungathered > 0 {
        text += &format!(", {} of others", account.ungathered);
    }
    if profile.incompleteness().is_some() {
        text += "; not the whole recording";
    }
    text
}

/// A number of things.
fn counted(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// What a differential flame graph compares, and what its colours mean, as a line of text.
pub fn account_of_changes(before: &Profile, after: &Profile) -> String {
    let [before, after] = [before, after].map(Profile::samples);
    format!("{after} ticks against {before}: colours of functions' own shares")
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::file::Contents;

    use super::*;

    fn profile(file: &str, release: &str, build_id: &str) -> Profile {
        let contents = Contents {
            info: RecordingInfo {
                kernel: file.to_owned(),
                hz: 250,
                began_ns: 1_700_000_000_999_999_999,
                ..RecordingInfo::default()
            },
            kernel: Some(KernelInfo {
                release: release.to_owned(),
                build_id: build_id.to_owned(),
                ..KernelInfo::default()
            }),
            ..Contents::default()
        };
        Profile {
            contents,
            ..Profile::default()
        }
    }

    #[test]
    fn a_title_has_the_kernel_and_the_time() {
        let build_id = "00112233445566778899aabbccddeeff00112233";
        let mut one = profile("/boot/vmlinuz", "6.12.43+deb13-amd64", build_id);
        let expected =
            "vmlinuz 6.12.43+deb13-amd64 (build id 001122334455), 250 Hz, 2023-11-14 22:13:20 UTC";
        assert_eq!(title(&one), expected);
        one.merged = vec![Profile::default()];
        assert_eq!(title(&one), format!("{expected}, and another recording"));
        let named = profile("vmlinuz-6.1.0-40-amd64", "6.1.0-40-amd64", "");
        let expected = "vmlinuz-6.1.0-40-amd64, 250 Hz, 2023-11-14 22:13:20 UTC";
        assert_eq!(title(&named), expected);
    }

    #[test]
    fn missing_facts_are_omitted() {
        let mut none = profile("", "", "");
        none.contents.info.began_ns = 0;
        assert_eq!(title(&none), "A guest, 250 Hz");
        none.contents.kernel = None;
        assert_eq!(title(&none), "A guest, 250 Hz");
    }

    #[test]
    fn an_account_is_grammatical() {
        let mut one = profile("vmlinuz", "", "");
        (one.contents.account.samples, one.contents.account.idle) = (1, 1);
        one.contents.closed = Some(one.contents.account);
        let expected = "1 sample and 1 idle tick at 250 Hz; 0 stolen, 0 lost";
        assert_eq!(account(&one), expected);
    }

    #[test]
    fn names_of_any_length_have_a_title() {
        let long = "λ".repeat(1 << 20);
        let title = title(&profile(&long, &format!("5{long}"), &long));
        assert!(title.chars().count() < 200, "{}", title.len());
    }
}
