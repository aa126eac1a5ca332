//! Draws folded stacks as flame graphs.

use std::ffi::OsStr;
use std::path::Path;

use inferno::flamegraph::color::MultiPalette;
use inferno::flamegraph::{Direction, Options, Palette, TextTruncateDirection, from_lines};

use crate::profile::{Profile, Weight};
use crate::text::visible;

/// The appearance of a flame graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// The text above it.
    pub title: String,
    /// The text below the title.
    pub subtitle: String,
    /// Whether the outermost frames are at the top.
    pub icicle: bool,
    /// Whether lines have two counts; colours then show the change from the first to the second.
    pub differential: bool,
}

impl Graph {
    /// Draws `lines`, folded stacks, as an SVG document, with kernel frames in orange.
    ///
    /// # Errors
    /// There is no stack with a sample.
    pub fn draw(&self, lines: &[String]) -> std::io::Result<Vec<u8>> {
        let mut options = Options::default();
        options.title = visible(&self.title);
        options.subtitle = Some(visible(&self.subtitle));
        options.count_name = "ticks".to_owned();
        // The same recording must give the same picture.
        options.deterministic = true;
        options.text_truncate_direction = TextTruncateDirection::Right;
        options.direction = if self.icicle {
            Direction::Inverted
        } else {
            Direction::Straight
        };
        if !self.differential {
            options.colors = Palette::Multi(MultiPalette::Java);
        }
        let lines: Vec<String> = lines.iter().map(|line| visible(line)).collect();
        let mut svg = Vec::new();
        from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
        Ok(svg)
    }
}

/// The default title for `profile`.
pub fn title(profile: &Profile) -> String {
    let kernel = Path::new(&profile.contents.info.kernel).file_name();
    let kernel = kernel.and_then(OsStr::to_str).unwrap_or("A guest");
    format!("{kernel}, seen from the hypervisor")
}

/// The account of `profile`'s ticks, as a line of text.
pub fn account(profile: &Profile) -> String {
    let account = profile.contents.account;
    let info = &profile.contents.info;
    let mut text = match info.event {
        None => format!(
            "{} samples and {} idle ticks at {}; {} stolen, {} lost",
            account.samples,
            account.idle,
            info.rate(),
            account.stolen,
            account.lost
        ),
        Some(event) => format!(
            "{} samples: {}{}; {} lost",
            account.samples,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(graph: &Graph, lines: &[&str]) -> String {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        String::from_utf8(graph.draw(&lines).unwrap()).unwrap()
    }

    #[test]
    fn names_are_text_and_nothing_else() {
        let graph = Graph {
            title: "</text><script>alert(1)</script>\x01".to_owned(),
            ..Graph::default()
        };
        let svg = drawn(&graph, &["<script>x</script>\x1b-7;a\"'&b 3"]);
        assert!(svg.contains("&lt;script&gt;x&lt;/script&gt;�-7"), "{svg}");
        assert_eq!(svg.matches("<script").count(), 1);
        assert!(
            svg.chars()
                .all(|c| c == '\n' || c == '\t' || !c.is_control())
        );
    }

    #[test]
    fn icicles_hang() {
        let lines = ["a;b_[k] 2", "a;c 1"];
        let flames = drawn(&Graph::default(), &lines);
        let icicles = Graph {
            icicle: true,
            ..Graph::default()
        };
        let icicles = drawn(&icicles, &lines);
        assert!(flames.contains("inverted = false"));
        assert!(icicles.contains("inverted = true"));
        assert!(flames.contains("b (2 ticks, 66.67%)"), "{flames}");
    }

    #[test]
    fn nothing_is_an_error() {
        assert!(Graph::default().draw(&[]).is_err());
    }
}
