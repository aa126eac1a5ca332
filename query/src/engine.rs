//! The engine that answers SQL: DataFusion, with one table and nothing else that it could read or write.

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
use kvmprof_tools::interrupt::Interrupt;
use tokio::runtime::Runtime;

use crate::data::DataSet;
use crate::table::Samples;

/// The table's name.
pub const TABLE: &str = "samples";
/// How often it is asked whether somebody interrupts, while the engine works.
const LOOK: Duration = Duration::from_millis(100);

/// The engine, with a data set.
pub struct Engine {
    context: SessionContext,
    runtime: Runtime,
    interrupt: Interrupt,
}

impl Engine {
    /// Opens the data set at `place`, a folder or the URL of an object store. What the engine collects, such as groups and what it sorts, takes up to `memory` bytes, and then goes
    /// to temporary files.
    ///
    /// # Errors
    /// There is no data set, or it can't be read.
    pub fn open(place: &str, memory: usize, interrupt: Interrupt) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let set = runtime.block_on(DataSet::open(place))?;
        let environment =
            RuntimeEnvBuilder::new().with_memory_pool(Arc::new(FairSpillPool::new(memory)));
        let mut config = SessionConfig::new();
        // Conditions are looked at before the other columns are read.
        config.options_mut().execution.parquet.pushdown_filters = true;
        let context = SessionContext::new_with_config_rt(config, environment.build_arc()?);
        let samples = runtime.block_on(Samples::new(&context, set))?;
        context.register_table(TABLE, Arc::new(samples))?;
        Ok(Self {
            context,
            runtime,
            interrupt,
        })
    }

    /// The answer to a question in SQL, before it is computed. It reads the table and does nothing else.
    ///
    /// # Errors
    /// It isn't SQL, or isn't a question, or is about something that there isn't.
    pub fn ask(&self, sql: &str) -> anyhow::Result<DataFrame> {
        let options = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false)
            .with_allow_statements(false);
        let answer = self.context.sql_with_options(sql, options);
        self.runtime.block_on(answer).context("Wrong SQL")
    }

    /// The rows for which `condition` is true, an SQL expression; all of them without one.
    ///
    /// # Errors
    /// It isn't a condition.
    pub fn rows(&self, condition: Option<&str>) -> anyhow::Result<DataFrame> {
        let all = self.runtime.block_on(self.context.table(TABLE))?;
        let Some(condition) = condition else {
            return Ok(all);
        };
        let wrong = || format!("Wrong condition {condition}");
        let parsed = all.parse_sql_expr(condition).with_context(wrong)?;
        all.filter(parsed).with_context(wrong)
    }

    /// Computes an answer, and hands its columns and each part of its rows to `each`.
    ///
    /// # Errors
    /// A file can't be read, memory doesn't suffice, `each` fails, or a signal came.
    pub fn compute(
        &self,
        answer: DataFrame,
        mut each: impl FnMut(&RecordBatch) -> anyhow::Result<()>,
    ) -> anyhow::Result<SchemaRef> {
        let failed = "The query failed";
        self.runtime.block_on(async {
            let mut stream = answer.execute_stream().await.context(failed)?;
            let schema = stream.schema();
            loop {
                let next = tokio::time::timeout(LOOK, stream.next()).await;
                if self.interrupt.is_raised() {
                    bail!("Interrupted");
                }
                match next {
                    Err(_) => {}
                    Ok(None) => return Ok(schema),
                    Ok(Some(batch)) => each(&batch.context(failed)?)?,
                }
            }
        })
    }
}
