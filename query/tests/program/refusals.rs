//! What isn't answered.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::parquet::arrow::ArrowWriter;

use super::{program, run};

/// The message of what has to fail with this status.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = run(arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        output.status.code(),
        Some(status),
        "{arguments:?}: {message}"
    );
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(
        message.starts_with("kvmprof-query: ") && message.lines().count() == 1,
        "{message}"
    );
    message
}

#[test]
fn sql_that_is_no_question_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let other = folder.path().join("other.csv");
    fs::write(&other, "a,b\n1,2\n").unwrap();
    for sql in [
        format!("COPY samples TO '{place}/copy.parquet'"),
        format!("COPY (SELECT 1) TO '{place}/copy.csv' STORED AS CSV"),
        format!("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{place}/other.csv'"),
        format!("SELECT * FROM '{place}/other.csv'"),
        "CREATE VIEW v AS SELECT 1".to_owned(),
        "CREATE TABLE t AS SELECT 1".to_owned(),
        "INSERT INTO samples SELECT * FROM samples".to_owned(),
        "DROP TABLE samples".to_owned(),
        "SET datafusion.execution.batch_size = 1".to_owned(),
        "EXPLAIN ANALYZE COPY samples TO '/tmp/x.parquet'".to_owned(),
        "SELECT 1; SELECT 2".to_owned(),
    ] {
        refused(&[&sql], 1);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(!Path::new("/tmp/x.parquet").exists());
}

#[test]
fn wrong_questions_are_told_what_is_wrong() {
    assert!(refused(&["SELEC 1"], 1).contains("Wrong SQL"));
    assert!(refused(&["SELECT nothing FROM samples"], 1).contains("nothing"));
    assert!(refused(&["SELECT * FROM other"], 1).contains("other"));
    let top = |condition| refused(&["top", "--where", condition], 1);
    assert!(top("gest = 'a'").contains("Wrong condition gest = 'a'"));
    assert!(top("true) OR (true").contains("Wrong condition"));
    assert!(top("guest = 'none'").contains("nothing where guest = 'none'"));
    refused(&["--as", "out.kvmprof", "SELECT 1"], 2);
    refused(&["--where", "true", "SELECT 1"], 2);
}

/// The message for a data set that isn't one.
fn opened(folder: &Path) -> String {
    let output = program()
        .arg("--data")
        .arg(folder)
        .arg("SELECT 1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_is_no_data_set_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(opened(&folder.path().join("none")).contains("Cannot read"));
    assert!(opened(folder.path()).contains("There is no file DATE/HOST/GUEST"));
    let place = folder.path().join("date=2026-03-01/host=a/guest=b");
    fs::create_dir_all(&place).unwrap();
    let path = place.join("1-x.parquet");
    fs::write(&path, "no Parquet at all").unwrap();
    assert!(opened(folder.path()).contains("1-x.parquet"));
    let numbers = Arc::new(Int64Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter([("time", numbers as _)]).unwrap();
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    assert!(
        opened(folder.path())
            .contains("not a file of kvmprof's data set: it has Int64 in its column time")
    );
    let nothing = program().arg("SELECT 1").output().unwrap();
    assert_eq!(nothing.status.code(), Some(2));
}
