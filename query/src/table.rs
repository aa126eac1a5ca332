//! The table `samples`: the files of a data set. A query reads only the files that meet its conditions on date, host and guest.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, bail};
use async_trait::async_trait;
use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, StringViewArray};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::datasource::TableType;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;

use crate::data::{DataFile, DataSet, PARTITIONS};

/// The columns in a data set's files, with their types.
const COLUMNS: [(&str, Column); 16] = [
    ("time", Column::Time),
    ("seconds", Column::Number),
    ("boot", Column::Text),
    ("kernel", Column::Text),
    ("hz", Column::Number),
    ("process", Column::Text),
    ("thread", Column::Text),
    ("mode", Column::Text),
    ("ticks", Column::Number),
    ("nanoseconds", Column::Number),
    (LATER, Column::Number),
    ("function", Column::Text),
    ("module", Column::Text),
    ("stack", Column::Texts),
    ("modules", Column::Texts),
    ("labels", Column::Labels),
];

/// The column that files of an earlier release don't have. Its values are null then.
const LATER: &str = "interrupts_off";

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Time,
    Number,
    Text,
    Texts,
    Labels,
}

impl Column {
    fn is(self, found: &DataType) -> bool {
        match self {
            Self::Time => matches!(found, DataType::Timestamp(..)),
            Self::Number => matches!(found, DataType::Int32 | DataType::Int64),
            Self::Text => matches!(
                found,
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
            ),
            Self::Texts => match found {
                DataType::List(item) | DataType::LargeList(item) => Self::Text.is(item.data_type()),
                _ => false,
            },
            Self::Labels => matches!(found, DataType::Map(..)),
        }
    }
}

/// The table.
pub struct Samples {
    url: ObjectStoreUrl,
    files: Vec<DataFile>,
    file_schema: SchemaRef,
    /// The columns of the files, and those of the folders' names.
    schema: SchemaRef,
}

impl fmt::Debug for Samples {
    /// Shows the number of files instead of the files.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Samples({} files)", self.files.len())
    }
}

impl Samples {
    /// The table of the files of `set`, which all have the columns of the first file. The column `interrupts_off` may be missing in any of them.
    ///
    /// # Errors
    /// The first file can't be read, or isn't a file of a data set.
    pub async fn new(context: &SessionContext, set: DataSet) -> anyhow::Result<Self> {
        let DataSet { url, store, files } = set;
        let Some(first) = files.first() else {
            bail!("There are no files");
        };
        let name = match &store {
            None => format!("/{}", first.location),
            Some(_) => format!("{}{}", url.as_str(), first.location),
        };
        if let Some(store) = store {
            context.register_object_store(url.as_ref(), store);
        }
        let read = || format!("Cannot read {name}");
        let state = context.state();
        let store = state.runtime_env().object_store(&url)?;
        let object = located(first).object_meta;
        let format = ParquetFormat::default();
        let inferred = format.infer_schema(&state, &store, &[object]).await;
        let file_schema = with_later(&inferred.with_context(read)?);
        for (name, column) in COLUMNS {
            let found = file_schema.field_with_name(name).ok();
            if !found.is_some_and(|field| column.is(field.data_type())) {
                bail!(
                    "{name} is not a file of kvmprof's data set: it {}",
                    match found {
                        None => format!("has no column {name}"),
                        Some(field) => format!("has {} in its column {name}", field.data_type()),
                    }
                );
            }
        }
        let fields = file_schema.fields().iter().cloned().chain(partitions());
        let schema = Arc::new(Schema::new(fields.collect::<Vec<FieldRef>>()));
        Ok(Self {
            url,
            files,
            file_schema,
            schema,
        })
    }

    /// The files that meet `filters`, which are about the folders' columns only.
    fn selected(&self, state: &dyn Session, filters: Vec<Expr>) -> Result<Vec<&DataFile>> {
        let Some(filter) = conjunction(filters) else {
            return Ok(self.files.iter().collect());
        };
        let folders = Arc::new(Schema::new(partitions().collect::<Vec<FieldRef>>()));
        let columns = (0..PARTITIONS.len()).map(|column| {
            let values = self.files.iter().map(|file| file.values[column].as_str());
            Arc::new(StringViewArray::from_iter_values(values)) as ArrayRef
        });
        let batch = RecordBatch::try_new(Arc::clone(&folders), columns.collect())?;
        let expression = state.create_physical_expr(filter, &DFSchema::try_from(folders)?)?;
        let kept = expression.evaluate(&batch)?.into_array(batch.num_rows())?;
        let kept: Option<&BooleanArray> = kept.as_any().downcast_ref();
        let is_kept =
            |number: usize| kept.is_none_or(|kept| kept.is_valid(number) && kept.value(number));
        let files = self.files.iter().enumerate();
        Ok(files
            .filter(|(number, _)| is_kept(*number))
            .map(|(_, file)| file)
            .collect())
    }
}

/// The columns of a file, and [`LATER`] if it isn't among them: the engine reads null for a column that a file doesn't have.
fn with_later(found: &SchemaRef) -> SchemaRef {
    let mut fields: Vec<FieldRef> = found.fields().iter().cloned().collect();
    if found.field_with_name(LATER).is_err() {
        fields.push(Arc::new(Field::new(LATER, DataType::Int64, true)));
    }
    Arc::new(Schema::new(fields))
}

/// The columns of the folders' names.
fn partitions() -> impl Iterator<Item = FieldRef> {
    PARTITIONS
        .into_iter()
        .map(|name| Arc::new(Field::new(name, DataType::Utf8View, false)))
}

/// The file in the engine's form.
fn located(file: &DataFile) -> PartitionedFile {
    let mut located = PartitionedFile::new("", file.length);
    // The path is set here because `new` would encode % in names again.
    located.object_meta.location = file.location.clone();
    located.partition_values = (file.values.iter())
        .map(|value| ScalarValue::Utf8View(Some(value.clone())))
        .collect();
    located
}

/// Whether a condition uses only the folders' columns.
fn is_of_folders(filter: &Expr) -> bool {
    let columns = filter.column_refs();
    !columns.is_empty()
        && !filter.is_volatile()
        && (columns.iter()).all(|column| PARTITIONS.contains(&column.name.as_str()))
}

#[async_trait]
impl TableProvider for Samples {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let support = |filter: &&Expr| {
            if is_of_folders(filter) {
                TableProviderFilterPushDown::Exact
            } else {
                TableProviderFilterPushDown::Inexact
            }
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let of_folders = filters.iter().filter(|filter| is_of_folders(filter));
        let selected = self.selected(state, of_folders.cloned().collect())?;
        log::debug!("{} of {} files", selected.len(), self.files.len());
        if selected.is_empty() {
            let schema = match projection {
                Some(columns) => Arc::new(self.schema.project(columns)?),
                None => Arc::clone(&self.schema),
            };
            return Ok(Arc::new(EmptyExec::new(schema)));
        }
        let files: Vec<PartitionedFile> = selected.into_iter().map(located).collect();
        let groups = FileGroup::new(files).split_files(state.config().target_partitions());
        let format = ParquetFormat::default().with_options(state.table_options().parquet.clone());
        let schema = TableSchema::new(Arc::clone(&self.file_schema), partitions().collect());
        let source = format.file_source(schema);
        let config = FileScanConfigBuilder::new(self.url.clone(), source)
            .with_file_groups(groups)
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        format.create_physical_plan(state, config).await
    }
}
