//! The guests that tests boot.

use kvmprof_demo_guest::Image;

/// The kernel of a guest, and its command line.
#[derive(Clone, Copy, Debug)]
pub enum Boot<'a> {
    /// The guest of `kvmprof demo`.
    Demo,
    /// The test guest, with these words on its command line.
    Test(&'a str),
}

impl<'a> Boot<'a> {
    /// The kernel's image.
    pub fn image(self) -> &'static Image {
        match self {
            Self::Demo => &kvmprof_demo_guest::IMAGE,
            Self::Test(_) => &kvmprof_test_guest::IMAGE,
        }
    }

    /// The file name for the kernel.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Demo => "demo.elf",
            Self::Test(_) => "test.elf",
        }
    }

    /// The guest's command line.
    pub fn command_line(self) -> &'a str {
        match self {
            Self::Demo => "",
            Self::Test(words) => words,
        }
    }
}
