//! The Debian packages on new systems of Debian's releases: installed, used and purged.

use std::path::Path;
use std::process::Command;

use crate::packages::{PACKAGES, package, succeeds};

const RELEASES: [&str; 2] = ["bookworm", "trixie"];
const MIRROR: &str = "http://deb.debian.org/debian";
const CHECKS: &str = include_str!("clean_root.sh");

/// Purged, the packages in `debs` leave nothing on a system.
pub fn new_systems_have_what_they_need(debs: &Path) {
    let files = PACKAGES.map(|name| package(debs, name).display().to_string());
    for release in RELEASES {
        let mut mmdebstrap = Command::new("mmdebstrap");
        mmdebstrap.args(["--quiet", "--variant=minbase", "--format=null"]);
        // What the packages' units and pages are for.
        mmdebstrap.arg("--include=man-db,systemd");
        mmdebstrap.arg(format!("--customize-hook=copy-in {} /srv", files.join(" ")));
        mmdebstrap.arg(format!("--customize-hook={CHECKS}"));
        println!(
            "{}",
            succeeds(mmdebstrap.args([release, "/dev/null", MIRROR]))
        );
    }
}
