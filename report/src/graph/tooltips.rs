//! What a frame's tooltip says beside its name and its ticks: its module, and the kind of its code.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

use super::marks::MARKS;
use super::palette::{Shade, cut};
use crate::markup::Markup;
use crate::profile::{Levels, Profile, counted, plain};
use crate::text::visible;

/// The modules of functions by their names. One of which several modules have a function has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modules(HashMap<String, Option<String>, RandomState>);

impl Modules {
    /// Those of all functions in `profiles`.
    pub fn of<'a>(profiles: impl IntoIterator<Item = &'a Profile>) -> Self {
        let mut modules = Self::default();
        for profile in profiles {
            let mut seen = HashSet::<_, RandomState>::default();
            for counted in counted(profile, &Levels::default()) {
                let mut frames = counted.frames();
                frames.retain(|frame| seen.insert((frame.name_id, frame.module_id)));
                for frame in frames {
                    let name = plain(frame.name).replace(MARKS, "");
                    modules.add(&visible(&name), &visible(frame.module));
                }
            }
        }
        modules
    }

    fn add(&mut self, name: &str, module: &str) {
        match self.0.get_mut(name) {
            Some(known) if known.as_deref() != Some(module) => *known = None,
            Some(_) => {}
            None => {
                self.0.insert(name.to_owned(), Some(module.to_owned()));
            }
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(&*unescaped(name))?.as_deref()
    }
}

/// Adds to the titles of the frames of inferno's document `svg`, such as `f (3 ticks, 10.00%)`, their modules, and the kinds of code that their colours
/// stand for in `kinds`.
pub fn with_tooltips(svg: &str, modules: &Modules, kinds: &[Shade]) -> String {
    const TITLE: &str = "<title>";
    let mut frames = svg.split(TITLE);
    let mut out = String::with_capacity(svg.len());
    out.push_str(frames.next().unwrap_or_default());
    for frame in frames {
        out.push_str(TITLE);
        let facts = frame.split_once(")</title>").and_then(|(title, rest)| {
            let (name, _) = title.rsplit_once(" (")?;
            Some((title, facts(name, rest, modules, kinds)))
        });
        match facts {
            Some((title, facts)) => {
                out.push_str(title);
                out.push_str(facts.as_str());
                out.push_str(&frame[title.len()..]);
            }
            None => out.push_str(frame),
        }
    }
    out
}

/// What is known of the frame with this `name`, whose document goes on with `rest`.
fn facts(name: &str, rest: &str, modules: &Modules, kinds: &[Shade]) -> Markup {
    let mut facts = Markup::default();
    let fill = rest
        .split_once("fill=\"")
        .and_then(|(_, fill)| fill.split_once('"'));
    let is_it = |color: [u8; 3]| {
        let [r, g, b] = color;
        fill.is_some_and(|(fill, _)| fill == format!("rgb({r},{g},{b})"))
    };
    let kind = kinds
        .iter()
        .find(|(.., color)| is_it(*color) || is_it(cut(*color)));
    if let Some(module) = modules.get(name) {
        facts.add(", ").text(module);
    }
    // A group's or a process's own name says what it is.
    if let Some((_, label, _)) = kind.filter(|(name, ..)| *name != "group") {
        facts.add(", ").text(label);
    }
    facts
}

/// The text that inferno has written as `escaped`.
fn unescaped(escaped: &str) -> Cow<'_, str> {
    if !escaped.contains('&') {
        return Cow::Borrowed(escaped);
    }
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
    ];
    let text = entities
        .into_iter()
        .fold(escaped.to_owned(), |text, (entity, letter)| {
            text.replace(entity, letter)
        });
    Cow::Owned(text.replace("&amp;", "&"))
}

#[cfg(test)]
mod tests {
    use super::super::palette::MODES;
    use super::*;

    const SVG: &str = "<g><title>a&lt;b&gt; (3 ticks, 75.00%)</title><rect fill=\"rgb(244,164,96)\"/><text>a</text></g>\
         <g><title>c (1 ticks, 25.00%)</title><rect fill=\"rgb(140,194,244)\"/></g>\
         <g><title>p-1 (4 ticks, 100%)</title><rect fill=\"rgb(223,227,232)\"/></g>";

    #[test]
    fn frames_have_their_modules_and_modes() {
        let mut modules = Modules::default();
        modules.add("a<b>", "[<k>]");
        for module in ["one", "other", "one"] {
            modules.add("c", module);
        }
        let svg = with_tooltips(SVG, &modules, &MODES);
        for title in [
            "<title>a&lt;b&gt; (3 ticks, 75.00%, [&#60;k&#62;], kernel)</title>",
            // Of two modules, and with a torn edge.
            "<title>c (1 ticks, 25.00%, user)</title>",
            "<title>p-1 (4 ticks, 100%)</title>",
        ] {
            assert!(svg.contains(title), "{svg}");
        }
        assert!(with_tooltips(SVG, &modules, &[]).contains("c (1 ticks, 25.00%)<"));
    }
}
