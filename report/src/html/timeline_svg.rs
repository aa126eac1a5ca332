//! Draws the timeline.

use std::fmt::Write;

use kvmprof_recording::Mode;

use super::timeline::{Bin, IDLE_TICKS, Lane, Timeline};
use crate::profile::Profile;
use crate::text::escape;

/// The height of a lane, in its own units.
const HEIGHT: u64 = 100;
/// The number of a bin's parts that are drawn; ticks that weren't selected are left blank.
const DRAWN: usize = 6;
/// The number of times on the axis.
const TIMES: u32 = 4;

/// The names of a bin's parts, and their classes in the style sheet.
pub const PARTS: [(&str, &str); DRAWN] = [
    (Mode::User.name(), "m0"),
    (Mode::Kernel.name(), "m1"),
    (Mode::Interrupt.name(), "m2"),
    (Mode::Idle.name(), "m3"),
    ("stolen", "m4"),
    ("lost", "m5"),
];

/// The vCPUs and processes of `timeline`, one below the other.
pub fn draw(timeline: &Timeline, profile: &Profile) -> String {
    let mut out = String::new();
    out.push_str("<p class=legend>");
    for (name, class) in PARTS {
        let _ = write!(out, "<span><i class={class}></i>{name}</span> ");
    }
    out.push_str("</p>\n<div class=lanes>\n");
    for (vcpu, lane) in &timeline.vcpus {
        draw_lane(&mut out, &format!("vCPU {vcpu}"), timeline, |bin| {
            let bin = lane.bins.get(bin).copied().unwrap_or_default();
            (
                bin,
                bin.iter().fold(0, |sum, part| sum.saturating_add(*part)),
            )
        });
    }
    if timeline.has_more_vcpus {
        out.push_str("<p class=note>There are more vCPUs than are shown here.</p>\n");
    }
    let wholes = wholes(timeline);
    for (pid, lane) in &timeline.processes {
        let name = profile.processes.get(pid);
        let name = name.map_or("", |process| process.shown_name(*pid));
        draw_lane(&mut out, &format!("{name} {pid}"), timeline, |bin| {
            let part = lane.bins.get(bin).copied().unwrap_or_default();
            (part, wholes.get(bin).copied().unwrap_or_default())
        });
    }
    out.push_str("<div class=lane><b></b><div class=times>");
    for index in 0..=TIMES {
        let time = u128::from(timeline.length) * u128::from(index) / u128::from(TIMES);
        let _ = write!(out, "<span>{}</span>", seconds(time));
    }
    out.push_str("</div></div>\n</div>\n");
    let _ = writeln!(
        out,
        "<p class=note>vCPUs: what each one's ticks were. Processes (those with the most samples): their \
         share of all vCPUs. One bin is {}.</p>",
        seconds(timeline.width.into())
    );
    out
}

/// All ticks of each bin.
fn wholes(timeline: &Timeline) -> Vec<u64> {
    let of = |lane: &Lane, bin: usize| {
        let bin = lane.bins.get(bin).copied().unwrap_or_default();
        bin.iter()
            .fold(0_u64, |sum, part| sum.saturating_add(*part))
    };
    (0..timeline.used())
        .map(|bin| {
            let lanes = timeline.vcpus.values();
            lanes.fold(0, |sum: u64, lane| sum.saturating_add(of(lane, bin)))
        })
        .collect()
}

fn seconds(ns: u128) -> String {
    let ms = ns / 1_000_000;
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}

/// Draws a lane: `bin_of` gives each bin's parts, and the count that fills its height.
fn draw_lane(
    out: &mut String,
    label: &str,
    timeline: &Timeline,
    bin_of: impl Fn(usize) -> (Bin, u64),
) {
    let used = timeline.used();
    let mut paths = vec![String::new(); DRAWN];
    // Equal neighbours become one rectangle.
    let mut runs = [(0_usize, 0_u64, 0_u64); DRAWN];
    for bin in 0..=used {
        let edges = if bin < used {
            let (parts, whole) = bin_of(bin);
            edges(&parts, whole)
        } else {
            [(0, 0); DRAWN]
        };
        for (part, (bottom, top)) in edges.into_iter().enumerate() {
            let (begin, low, high) = runs[part];
            if (low, high) == (bottom, top) {
                continue;
            }
            if high > low {
                let (y, width, height) = (HEIGHT - high, bin - begin, high - low);
                let _ = write!(paths[part], "M{begin} {y}h{width}v{height}h-{width}z");
            }
            runs[part] = (bin, bottom, top);
        }
    }
    let label = escape(label);
    let _ = write!(
        out,
        "<div class=lane><b title=\"{label}\">{label}</b>\
         <svg viewBox=\"0 0 {used} {HEIGHT}\" preserveAspectRatio=none role=img aria-label=\"{label}\">"
    );
    for (path, (name, class)) in paths.iter().zip(PARTS) {
        if !path.is_empty() {
            let _ = write!(
                out,
                "<path class={class} d=\"{path}\"><title>{label}: {name}</title></path>"
            );
        }
    }
    out.push_str("</svg></div>\n");
}

/// The edges of each part of a bin, from the bottom up. Idle time is at the top.
fn edges(parts: &Bin, whole: u64) -> [(u64, u64); DRAWN] {
    let mut edges = [(0, 0); DRAWN];
    let mut sum = 0_u128;
    let scaled = |sum: u128| {
        let whole = u128::from(whole).max(1);
        let half = whole / 2;
        u64::try_from((sum * u128::from(HEIGHT) + half) / whole).map_or(HEIGHT, |y| y.min(HEIGHT))
    };
    for part in [0, 1, 2, 4, 5, IDLE_TICKS] {
        let bottom = scaled(sum);
        sum += u128::from(parts[part]);
        edges[part] = (bottom, scaled(sum));
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_on_each_other_and_fill_the_height() {
        let edges = edges(&[1, 1, 0, 2, 0, 0, 0], 4);
        assert_eq!(
            edges,
            [(0, 25), (25, 50), (50, 50), (50, 100), (50, 50), (50, 50)]
        );
        let absurd = super::edges(&[u64::MAX; 7], u64::MAX);
        assert!(absurd.iter().all(|(_, top)| *top <= HEIGHT));
        assert_eq!(super::edges(&[0; 7], 0), [(0, 0); DRAWN]);
    }

    #[test]
    fn names_are_escaped() {
        let mut timeline = Timeline::default();
        timeline.width = 1;
        let mut out = String::new();
        draw_lane(&mut out, "\"><script>", &timeline, |_| ([1; 7], 7));
        assert!(!out.contains("<script"), "{out}");
        assert_eq!(out.matches("<path").count(), DRAWN);
    }
}
