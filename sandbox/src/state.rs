//! Which parts of the sandbox are on in this process, for `kvmprof status`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The parts of the sandbox, by the names that the status has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mechanism {
    /// `no_new_privs`.
    NoNewPrivileges,
    /// Landlock.
    Paths,
    /// seccomp.
    SystemCalls,
    /// Capabilities of the superuser.
    Capabilities,
}

impl Mechanism {
    /// All parts.
    pub const ALL: [Self; 4] = [
        Self::NoNewPrivileges,
        Self::Paths,
        Self::SystemCalls,
        Self::Capabilities,
    ];

    /// Its name in the status document.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoNewPrivileges => "no new privileges",
            Self::Paths => "landlock",
            Self::SystemCalls => "seccomp",
            Self::Capabilities => "capabilities",
        }
    }
}

static PARTS: Mutex<BTreeMap<Mechanism, String>> = Mutex::new(BTreeMap::new());

/// Notes how far `part` is on, in a few words.
pub(crate) fn note(part: Mechanism, how: impl Into<String>) {
    let mut parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
    parts.insert(part, how.into());
}

/// All parts, each with how far it is on, in a few words; `off` for a part that isn't on.
pub fn state() -> Vec<(Mechanism, String)> {
    let parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
    let how = |part: Mechanism| {
        parts
            .get(&part)
            .cloned()
            .unwrap_or_else(|| "off".to_owned())
    };
    Mechanism::ALL
        .into_iter()
        .map(|part| (part, how(part)))
        .collect()
}
