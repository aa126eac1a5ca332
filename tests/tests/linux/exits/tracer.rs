//! What the host's own tracer notes.

/// An event.
pub struct TracedEvent<'a> {
    /// The thread that ran.
    pub thread: u64,
    /// In ns.
    pub time: u64,
    pub name: &'a str,
    /// Its members.
    pub members: &'a str,
}

impl TracedEvent<'_> {
    /// The member, such as `prev_state=`. Names of threads, which may have blanks, come before others.
    pub fn member(&self, name: &str) -> Option<&str> {
        let mut words = self.members.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// The number in the member.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.member(name)?.parse().ok()
    }
}

/// The events in the text of `trace`, in the order of time. Its lines are such as `vcpu 1-232 [001] d.h1. 12.345678: softirq_entry: vec=1 [action=TIMER]`.
pub fn events(text: &str) -> impl Iterator<Item = TracedEvent<'_>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| event(line).unwrap_or_else(|| panic!("{line}")))
}

fn event(line: &str) -> Option<TracedEvent<'_>> {
    // The members may have brackets, too.
    let (before, rest) = line.split_once(": ")?;
    let (task, rest_of_head) = before.rsplit_once(" [")?;
    let (_, thread) = task.trim_end().rsplit_once('-')?;
    let (_, time) = rest_of_head.rsplit_once(' ')?;
    let (name, members) = rest.split_once(':')?;
    Some(TracedEvent {
        thread: thread.parse().ok()?,
        time: ns(time)?,
        name,
        members,
    })
}

/// A time such as `12.345678`, in ns.
fn ns(text: &str) -> Option<u64> {
    let (seconds, rest) = text.split_once('.')?;
    let us = rest.get(..6)?.parse::<u64>().ok()?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + us * 1000)
}
