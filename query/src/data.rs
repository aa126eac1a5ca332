//! The table `samples`: the files `date=…/host=…/guest=…/….parquet` of a folder or an object store. A query reads only those that meet its conditions on these
//! three.

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use datafusion::arrow::array::{AsArray, StringViewArray};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::helpers::parse_partitions_for_path;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use futures::{StreamExt, TryStreamExt};
use kvmprof_report::text::visible;
use percent_encoding::percent_decode_str;
use url::Url;

/// The table's name.
pub const TABLE: &str = "samples";
/// The columns whose values are in the folders' names, from the outermost folder inwards.
const FOLDERS: [&str; 3] = ["date", "host", "guest"];
/// The table, of the table `files` with the folders' names as they are. The engine can tell by `decoded` which files a query is about.
const SAMPLES: &str = "
    SELECT time, seconds, boot, kernel, hz, process, thread, mode, ticks, nanoseconds, interrupts_off, function, module, stack, modules, labels,
        date, decoded(host) AS host, decoded(guest) AS guest
    FROM files";
/// The column that files of an earlier release don't have. Its values are null then.
const LATER: &str = "interrupts_off";
/// The names of files. Those of others begin otherwise, such as files that are being written.
const FILES: &str = "[!._]*.parquet";
/// Maximum length of a store's error in messages, in characters.
const MAX_REASON: usize = 500;
/// The schemes of the URLs of object stores, with the begin of the names of the environment's variables that are for them.
const SCHEMES: [(&str, &str); 3] = [("s3", "AWS_"), ("gs", "GOOGLE_"), ("az", "AZURE_")];

/// Gives `context` the table [`TABLE`] of the data set at `place`, a folder or the URL of an object store.
///
/// # Errors
/// It can't be read, or its first file isn't a file of a data set.
pub async fn open(context: &SessionContext, place: &str) -> anyhow::Result<()> {
    let url = if place.contains("://") {
        store(context, place)?
    } else {
        let unread = || format!("Cannot read {place}");
        let folder = Path::new(place).canonicalize().with_context(unread)?;
        Url::from_directory_path(folder).ok().with_context(unread)?
    };
    let url = ListingTableUrl::try_new(url, None)?.with_glob(FILES)?;
    let state = context.state();
    let store = state.runtime_env().object_store(&url)?;
    let is_data = |path: &_| parse_partitions_for_path(&url, path, FOLDERS).is_some();
    let first = async {
        let files = url.list_all_files(&state, store.as_ref(), "").await?;
        let mut files =
            files.try_filter(|file| std::future::ready(file.size > 0 && is_data(&file.location)));
        files.next().await.transpose()
    };
    let first = first.await.map_err(|error| unlisted(place, &error))?;
    let Some(first) = first else {
        bail!(
            "There is no file DATE/HOST/GUEST/*.parquet, such as date=2026-03-01/host=a/guest=b/1.parquet, in {place}: is it the folder or the \
             URL of a sink of the type parquet?"
        );
    };
    let name = format!("{}{}", url.object_store().as_str(), first.location);
    let format = ParquetFormat::default().with_options(state.table_options().parquet.clone());
    let schema = format.infer_schema(&state, &store, &[first]).await;
    let schema = schema.with_context(|| format!("Cannot read {name}"))?;
    let schema = with_later(&schema);
    let folders = FOLDERS.map(|name| (name.to_owned(), DataType::Utf8View));
    let options = ListingOptions::new(Arc::new(format))
        .with_file_extension("")
        .with_table_partition_cols(folders.to_vec())
        .with_target_partitions(state.config().target_partitions())
        .with_collect_stat(false);
    let config = ListingTableConfig::new(url).with_listing_options(options);
    let files = ListingTable::try_new(config.with_schema(Arc::new(schema)))?;
    context.register_table("files", Arc::new(files))?;
    context.register_udf(decoded());
    let samples = context.sql(SAMPLES).await;
    let samples = samples.with_context(|| format!("{name} is not a file of kvmprof's data set"))?;
    context.register_table(TABLE, samples.into_view())?;
    context.deregister_table("files")?;
    context.deregister_udf("decoded");
    Ok(())
}

/// The error of a data set whose files can't be listed.
fn unlisted(place: &str, error: &dyn Display) -> anyhow::Error {
    let reason = visible(&error.to_string());
    let reason: String = reason.chars().take(MAX_REASON).collect();
    if !place.contains("://") {
        return anyhow::anyhow!("Cannot list {place}: {reason}");
    }
    anyhow::anyhow!(
        "Cannot list {place}: {reason}. The environment has its options: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, \
         AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP=true for a store without TLS; similar ones for other stores"
    )
}

/// Gives `context` the object store at `place`, and returns its URL.
fn store(context: &SessionContext, place: &str) -> anyhow::Result<Url> {
    let url = Url::parse(place).ok().filter(Url::has_host);
    let known = url.and_then(|url| {
        let known = SCHEMES
            .into_iter()
            .find(|(scheme, _)| *scheme == url.scheme())?;
        Some((url, known.1))
    });
    let (mut url, prefix) = known.with_context(|| {
        format!(
            "{place} is no URL of an object store: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
        )
    })?;
    let store = object_store::parse_url_opts(&url, options(prefix, env::vars_os()));
    let (store, _) = store.map_err(|error| unlisted(place, &error))?;
    context.register_object_store(&url, store.into());
    if !url.path().ends_with('/') {
        url.set_path(&format!("{}/", url.path()));
    }
    Ok(url)
}

/// A store's options among the environment's `variables`: those whose names begin with `prefix`. The store knows its options also by shorter names, such as `token` and
/// `endpoint`, which variables of other programs have, too. Those that it doesn't know are ignored.
fn options(
    prefix: &str,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (String, String)> {
    variables.filter_map(move |(name, value)| {
        let name = name.into_string().ok()?;
        let option = name.starts_with(prefix).then(|| name.to_ascii_lowercase());
        Some((option?, value.into_string().ok()?))
    })
}

/// The columns of a file, and [`LATER`] if it isn't among them: the engine reads null for a column that a file doesn't have and that may be null.
fn with_later(found: &Schema) -> Schema {
    let mut fields: Vec<FieldRef> = found.fields().iter().cloned().collect();
    if found.field_with_name(LATER).is_err() {
        fields.push(Arc::new(Field::new(LATER, DataType::Int64, true)));
    }
    Schema::new(fields)
}

/// The SQL function that decodes a folder's name, in which some characters are encoded (RFC 3986, section 2.1).
fn decoded() -> ScalarUDF {
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let decode = move |values: &[ColumnarValue]| -> Result<ColumnarValue> {
        Ok(match &values[0] {
            ColumnarValue::Scalar(value) => {
                let text = value.try_as_str().flatten().map(decode);
                ColumnarValue::Scalar(ScalarValue::Utf8View(text))
            }
            ColumnarValue::Array(values) => {
                let texts = values.as_string_view().iter();
                let texts: StringViewArray = texts.map(|text| text.map(decode)).collect();
                ColumnarValue::Array(Arc::new(texts))
            }
        })
    };
    let text = DataType::Utf8View;
    create_udf(
        "decoded",
        vec![text.clone()],
        text,
        Volatility::Immutable,
        Arc::new(decode),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_gets_only_its_own_variables() {
        let all = [
            ("AWS_REGION", "eu-1"),
            ("TOKEN", "of another program"),
            ("ENDPOINT", "http://elsewhere"),
            ("aws_endpoint", "http://elsewhere"),
            ("GOOGLE_SERVICE_ACCOUNT", "another store's"),
            ("XAWS_SECRET_ACCESS_KEY", "x"),
        ];
        let all = || {
            all.into_iter()
                .map(|(name, value)| (name.into(), value.into()))
        };
        let of = |scheme: &str| -> Vec<(String, String)> {
            let (_, prefix) = SCHEMES
                .into_iter()
                .find(|(known, _)| *known == scheme)
                .unwrap();
            options(prefix, all()).collect()
        };
        assert_eq!(of("s3"), [("aws_region".to_owned(), "eu-1".to_owned())]);
        assert!(of("az").is_empty());
        assert_eq!(of("gs").len(), 1);
    }
}
