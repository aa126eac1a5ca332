//! Counts of all processes, for clients.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::{ALL_COUNTERS, CounterId};
use kvmprof_abi::text::task_name;
use kvmprof_devices::endpoint::{Handle, IoctlReply};
use kvmprof_devices::profiling::pmc::{Account, ProcessKey, Row, Totals};
use kvmprof_recording::counters::ProcessCounters;

use super::super::Context;
use super::PmcConsumer;
use super::calls::HostTotals;

/// Maximum number of clients that count for all processes: the account of each may take most of a megabyte, and its document as much.
const MAX_ACCOUNTS: usize = 32;

impl PmcConsumer {
    /// Counts the `counters` with these bits for all processes from now on, for the client of `handle`; none: no longer.
    pub fn account(
        &mut self,
        handle: Handle,
        counters: i64,
        context: &Context<'_>,
    ) -> Result<IoctlReply, Errno> {
        let counters = u32::try_from(counters).map_err(|_| Errno::EINVAL)?;
        if counters & !ALL_COUNTERS != 0 {
            return Err(Errno::EINVAL);
        }
        if context.has_ended {
            return Err(Errno::ENXIO);
        }
        let totals = HostTotals::new(context);
        let mut chosen = CounterId::ALL.into_iter();
        if chosen.any(|id| counters & id.bit() != 0 && !totals.can_count(id)) {
            return Err(Errno::ENODEV);
        }
        if !self.open.contains(&handle) {
            return Err(Errno::EBADF);
        }
        let others = self.accounts.keys().filter(|other| **other != handle);
        if counters != 0 && others.count() >= MAX_ACCOUNTS {
            return Err(Errno::ENOMEM);
        }
        if self.accounts.is_empty() {
            self.hosts_source = context.ticks();
        }
        if counters == 0 {
            self.accounts.remove(&handle);
        } else {
            self.accounts.insert(handle, Account::new(counters));
        }
        self.follow();
        Ok(IoctlReply::default())
    }

    /// The next bytes of the document of `handle`.
    pub fn read_document(
        &mut self,
        handle: Handle,
        limit: usize,
        context: &Context<'_>,
    ) -> Result<Vec<u8>, Errno> {
        if !self.open.contains(&handle) {
            return Err(Errno::EBADF);
        }
        if !self.documents.has(handle) {
            let mut counters = context.machine.counters.read(&context.clocks.ticks());
            counters.processes = self.accounts.get(&handle).map(processes);
            let text = serde_json::to_vec(&counters).map_err(|_| Errno::EIO)?;
            self.documents.begin(handle, text)?;
        }
        Ok(self.documents.read(handle, limit))
    }
}

/// The counts of each process.
fn processes(account: &Account) -> Vec<ProcessCounters> {
    let process = |(key, row): (&ProcessKey, &Row)| {
        let counts = CounterId::ALL.into_iter().zip(row.counts);
        let counts = counts.map(|(id, count)| account.has(id).then_some(count));
        ProcessCounters {
            pid: key.pid,
            comm: task_name(&row.comm).collect(),
            started: key.started,
            counts: counts.collect(),
        }
    };
    account.rows().map(process).collect()
}
