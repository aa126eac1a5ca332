//! Time that an outer hypervisor took from this host, if the host is a guest itself: no run delay shows it.

use anyhow::Context;

/// The host's time on all processors, and its stolen part, in ticks of `USER_HZ` (proc_stat(5), the fields of the line
/// `cpu`).
#[derive(Clone, Copy)]
pub struct HostTime {
    all: u64,
    stolen: u64,
}

impl HostTime {
    /// Up to now.
    pub fn now() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string("/proc/stat").context("Cannot read /proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        // User, nice, system, idle, iowait, irq, softirq, steal; the remaining fields are included in the first two.
        let fields: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|field| field.parse().ok())
            .collect();
        Ok(Self {
            all: fields.iter().sum(),
            stolen: fields.get(7).copied().unwrap_or(0),
        })
    }

    /// The stolen ticks since `earlier`, and all ticks.
    pub fn stolen_since(self, earlier: Self) -> (u64, u64) {
        (self.stolen - earlier.stolen, self.all - earlier.all)
    }
}
