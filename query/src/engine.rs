//! The SQL engine: DataFusion, with one table. There is nothing else that it could read, and nothing that it could write.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::dataframe::DataFrame;
use datafusion::execution::context::{SQLOptions, SessionContext};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use kvmprof_cli::interrupt::Interrupt;
use tokio::runtime::Runtime;

use crate::data::{self, TABLE};

/// The name of the table of the chosen rows.
const CHOSEN: &str = "chosen";
/// The interval at which an interrupt is checked while the engine works.
const LOOK: Duration = Duration::from_millis(100);

/// The engine, with a data set.
pub struct Engine {
    context: SessionContext,
    runtime: Runtime,
    interrupt: Interrupt,
}

impl Engine {
    /// Opens the data set at `place`, a folder or the URL of an object store. Data that the engine gathers, such as groups and sorted rows, take up to `memory`
    /// bytes, and beyond that go to temporary files.
    ///
    /// # Errors
    /// There is no data set, it can't be read, or a signal has interrupted it.
    pub fn open(place: &str, memory: usize, interrupt: Interrupt) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        // A command may have several queries: the files are listed once.
        let environment = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(FairSpillPool::new(memory)))
            .with_object_list_cache_limit(memory);
        let mut config = SessionConfig::new();
        // Conditions are evaluated before the other columns are read.
        config.options_mut().execution.parquet.pushdown_filters = true;
        let context = SessionContext::new_with_config_rt(config, environment.build_arc()?);
        runtime.block_on(unless_interrupted(&interrupt, data::open(&context, place)))??;
        Ok(Self {
            context,
            runtime,
            interrupt,
        })
    }

    /// The answer to an SQL query, before it is computed. The query can only read the table.
    ///
    /// # Errors
    /// It isn't valid SQL, isn't a query, or names a table or a column that doesn't exist.
    pub fn ask(&self, sql: &str) -> anyhow::Result<DataFrame> {
        let options = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false)
            .with_allow_statements(false);
        let answer = self.context.sql_with_options(sql, options);
        self.runtime.block_on(answer).context("Wrong SQL")
    }

    /// The answer to an SQL query of the table `chosen`, before it is computed: it has the rows for which all of the SQL expressions `conditions` are true.
    ///
    /// # Errors
    /// One of them isn't a valid condition.
    pub fn ask_of(&self, conditions: &[String], sql: &str) -> anyhow::Result<DataFrame> {
        let mut chosen = self.runtime.block_on(self.context.table(TABLE))?;
        for condition in conditions {
            let wrong = || format!("Wrong condition {condition}");
            let parsed = chosen.parse_sql_expr(condition).with_context(wrong)?;
            chosen = chosen.filter(parsed).with_context(wrong)?;
        }
        self.context.deregister_table(CHOSEN)?;
        self.context.register_table(CHOSEN, chosen.into_view())?;
        self.ask(sql)
    }

    /// Computes an answer, and calls `each` with each part of its rows. Returns the answer's columns.
    ///
    /// # Errors
    /// A file can't be read, there isn't enough memory, `each` fails, or a signal has interrupted it.
    pub fn compute(
        &self,
        answer: DataFrame,
        mut each: impl FnMut(&RecordBatch) -> anyhow::Result<()>,
    ) -> anyhow::Result<SchemaRef> {
        let failed = "The query failed";
        self.runtime.block_on(async {
            let stream = unless_interrupted(&self.interrupt, answer.execute_stream()).await?;
            let mut stream = stream.context(failed)?;
            let schema = stream.schema();
            while let Some(batch) = unless_interrupted(&self.interrupt, stream.next()).await? {
                each(&batch.context(failed)?)?;
            }
            Ok(schema)
        })
    }
}

/// The result of `work`.
///
/// # Errors
/// A signal came before it.
async fn unless_interrupted<T>(
    interrupt: &Interrupt,
    work: impl Future<Output = T>,
) -> anyhow::Result<T> {
    let mut work = pin!(work);
    loop {
        let done = tokio::time::timeout(LOOK, &mut work).await;
        if interrupt.is_raised() {
            bail!("Interrupted");
        }
        if let Ok(done) = done {
            return Ok(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_the_work() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let interrupt = Interrupt::default();
        let done = runtime.block_on(unless_interrupted(&interrupt, async { 7 }));
        assert_eq!(done.unwrap(), 7);
        interrupt.stopper().stop();
        let never = futures::future::pending::<()>();
        let error = runtime.block_on(unless_interrupted(&interrupt, never));
        assert_eq!(error.unwrap_err().to_string(), "Interrupted");
    }
}
