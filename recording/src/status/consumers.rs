//! The part of the status document about the consumers of ticks.

use kvmprof_abi::pcs::Ledger as ConsumerLedger;
use kvmprof_abi::profil;
use serde::{Deserialize, Serialize};

use crate::StackParts;

/// A consumer of ticks. Its members show its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ConsumerStatus {
    /// The device pcs.
    Pcs(PcsStatus),
    /// A minor of prf.
    Prf(PrfStatus),
    /// A recorder.
    Recorder(RecorderStatus),
    /// A process that profil or pcsample profiles.
    Profil(ProfilStatus),
    /// The device pmc.
    Pmc(PmcStatus),
    /// A kind that a later version has added.
    Other(OtherStatus),
}

/// The device pcs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcsStatus {
    /// `pcs`.
    pub name: String,
    /// Whether a client has it open.
    pub open: bool,
    /// Whether it takes samples.
    pub gathering: bool,
    /// Its account.
    #[serde(with = "LedgerMembers")]
    pub ledger: ConsumerLedger,
}

/// A minor of prf that has a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrfStatus {
    /// `prf 0` to `prf 255`.
    pub name: String,
    /// Its number.
    pub minor: u16,
    /// Whether it counts.
    pub on: bool,
    /// Whether it has a table: always true.
    pub loaded: bool,
    /// The number of addresses in its table.
    pub addresses: usize,
    /// Its account since it was last turned on.
    #[serde(with = "LedgerMembers")]
    pub ledger: ConsumerLedger,
}

/// A recorder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecorderStatus {
    /// `recorder`.
    pub name: String,
    /// The file that it writes; `None` when a client reads the recording.
    pub path: Option<String>,
    /// Whether it takes ticks: false after the end, and after a write has failed.
    pub recording: bool,
    /// The parts of the call stacks that it takes.
    pub stacks: StackParts,
    /// The pids of the processes that it records; empty for all processes.
    pub pids: Vec<i32>,
    /// Its account. `recorded` samples and `merged` idle ticks are in the file, or the client has read them; `discarded`
    /// ticks are those that couldn't be written.
    #[serde(with = "LedgerMembers")]
    pub ledger: ConsumerLedger,
}

/// A process that profil or pcsample profiles. Its account has only ticks at which the process was in user mode and which
/// should be stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfilStatus {
    /// `profil` and the process's id.
    pub name: String,
    /// The process's id.
    pub pid: i32,
    /// `on`, or why nothing is stored any more.
    pub state: String,
    /// Whether kvmprof keeps the buffer for a client; else it is the process's own.
    pub kept: bool,
    /// Its account: `recorded` ticks were stored, `ungathered` ones were outside the profiled region, `pending` ones wait
    /// for their page, and the stores of `discarded` ones were given up.
    #[serde(with = "LedgerMembers")]
    pub ledger: ConsumerLedger,
}

/// The device pmc, while it counts anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmcStatus {
    /// `pmc`.
    pub name: String,
    /// The number of processes with counters.
    pub processes: usize,
    /// The number of clients that have requested counts of all processes.
    pub accounts: usize,
    /// The names of the counters that the kernel uses.
    pub kernel: Vec<String>,
    /// Its account: `recorded` ticks have found a process.
    #[serde(with = "LedgerMembers")]
    pub ledger: ConsumerLedger,
}

/// A consumer of a kind that this version doesn't know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherStatus {
    /// What it is called.
    pub name: String,
    /// Its account.
    #[serde(with = "LedgerMembers")]
    pub ledger: ConsumerLedger,
}

/// The members of a consumer's ledger. The ledger itself is defined for guests too, where there is no serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "ConsumerLedger")]
struct LedgerMembers {
    #[serde(default)]
    ticks: u64,
    #[serde(default)]
    recorded: u64,
    #[serde(default)]
    merged: u64,
    #[serde(default)]
    ungathered: u64,
    #[serde(default)]
    stolen: u64,
    #[serde(default)]
    lost: u64,
    #[serde(default)]
    pending: u64,
    #[serde(default)]
    discarded: u64,
}

impl ConsumerStatus {
    /// What it is called.
    pub fn name(&self) -> &str {
        match self {
            Self::Pcs(pcs) => &pcs.name,
            Self::Prf(prf) => &prf.name,
            Self::Recorder(recorder) => &recorder.name,
            Self::Profil(profil) => &profil.name,
            Self::Pmc(pmc) => &pmc.name,
            Self::Other(other) => &other.name,
        }
    }

    /// Its account.
    pub fn ledger(&self) -> &ConsumerLedger {
        match self {
            Self::Pcs(pcs) => &pcs.ledger,
            Self::Prf(prf) => &prf.ledger,
            Self::Recorder(recorder) => &recorder.ledger,
            Self::Profil(profil) => &profil.ledger,
            Self::Pmc(pmc) => &pmc.ledger,
            Self::Other(other) => &other.ledger,
        }
    }
}

impl PcsStatus {
    /// The device pcs, with its name.
    pub fn new(open: bool, gathering: bool, ledger: ConsumerLedger) -> Self {
        Self {
            name: "pcs".to_owned(),
            open,
            gathering,
            ledger,
        }
    }
}

impl PrfStatus {
    /// Minor `minor` of prf, with its name. It is `on` or off, and its table has this number of `addresses`.
    pub fn new(minor: u16, on: bool, addresses: usize, ledger: ConsumerLedger) -> Self {
        Self {
            name: format!("prf {minor}"),
            minor,
            on,
            loaded: true,
            addresses,
            ledger,
        }
    }
}

impl ProfilStatus {
    /// The profile of process `pid`, with its name.
    pub fn new(pid: i32, kept: bool, status: &profil::Status) -> Self {
        Self {
            name: format!("profil {pid}"),
            pid,
            state: status.state.describe().to_owned(),
            kept,
            ledger: ConsumerLedger {
                ticks: status.ticks,
                recorded: status.stored,
                ungathered: status.outside,
                pending: status.waiting,
                discarded: status.lost,
                ..ConsumerLedger::default()
            },
        }
    }
}

impl PmcStatus {
    /// The device pmc, with its name.
    pub fn new(
        processes: usize,
        accounts: usize,
        kernel: Vec<String>,
        ledger: ConsumerLedger,
    ) -> Self {
        Self {
            name: "pmc".to_owned(),
            processes,
            accounts,
            kernel,
            ledger,
        }
    }
}

impl RecorderStatus {
    /// A recorder of all processes for a client, with its name.
    pub fn new(recording: bool, stacks: StackParts, ledger: ConsumerLedger) -> Self {
        Self {
            name: "recorder".to_owned(),
            path: None,
            recording,
            stacks,
            pids: Vec::new(),
            ledger,
        }
    }
}
