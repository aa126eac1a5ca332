//! Refused queries and files.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{Int64Array, RecordBatch, UInt32Array};
use datafusion::arrow::compute::cast;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::{file_of, guest_folder, message, printed, program, run, run_in, said};

/// The message of a failure with this status.
#[track_caller]
fn refused(arguments: &[&str], status: i32) -> String {
    message(run(arguments), status)
}

#[test]
fn sql_other_than_queries_is_refused() {
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
fn errors_of_wrong_queries_name_the_cause() {
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

#[test]
fn no_recording_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.kvmprof");
    let name = path.to_str().unwrap();
    let write = |date: &str| {
        let condition = format!("host = 'host-2' AND date = '{date}' AND seconds > 0");
        said(&["--where", &condition, "--as", name]);
        fs::read(&path).unwrap()
    };
    let first = write("2026-03-02");
    for picture in [
        &["flamegraph", "--output", name][..],
        &[
            "diff",
            "--where",
            "kernel = '6.12.1'",
            "--where",
            "kernel = '6.12.2'",
            "--output",
            name,
        ],
    ] {
        assert!(refused(picture, 1).contains("out.kvmprof is a recording"));
        assert!(fs::read(&path).unwrap() == first);
    }
    // Another recording doesn't replace it either.
    let second = write("2026-03-01");
    let older = fs::read(folder.path().join("out.kvmprof.old")).unwrap();
    assert!(older == first && second != first);
}

/// The message for a folder without a data set.
#[track_caller]
fn opened(folder: &Path) -> String {
    let mut program = program();
    program.arg("--data").arg(folder).arg("SELECT 1");
    message(program.output().unwrap(), 1)
}

#[test]
fn folders_without_a_data_set_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(opened(&folder.path().join("none")).contains("Cannot read"));
    assert!(opened(folder.path()).contains("There is no file DATE/HOST/GUEST"));
    let path = guest_folder(folder.path(), "a", "b").join("1-x.parquet");
    fs::write(&path, "no Parquet at all").unwrap();
    assert!(opened(folder.path()).contains("1-x.parquet"));
    let numbers = Arc::new(Int64Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter([("time", numbers as _)]).unwrap();
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    assert!(opened(folder.path()).contains("1-x.parquet is not a file of kvmprof's data set: "));
    for url in ["ftp://a/b", "s3://", "file:///tmp", "http://a"] {
        assert!(
            opened(Path::new(url)).contains("is no URL of an object store"),
            "{url}"
        );
    }
    message(program().arg("SELECT 1").output().unwrap(), 2);
}

/// Writes the Parquet file at `from` to `to`, without this column.
fn write_without(from: &Path, to: &Path, column: &str) {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(from).unwrap()).unwrap();
    let kept: Vec<usize> = (reader.schema().fields().iter().enumerate())
        .filter(|(_, field)| field.name() != column)
        .map(|(place, _)| place)
        .collect();
    let schema = Arc::new(reader.schema().project(&kept).unwrap());
    let mut writer = ArrowWriter::try_new(File::create(to).unwrap(), schema, None).unwrap();
    for batch in reader.build().unwrap() {
        writer
            .write(&batch.unwrap().project(&kept).unwrap())
            .unwrap();
    }
    writer.close().unwrap();
}

/// Of files of a release that had no column `interrupts_off` it isn't known, whether they come before others or after them; no other column may be missing.
#[test]
fn columns_missing_in_former_releases_are_unknown() {
    let guests = [("host-0", "db-0"), ("host-1", "web-2")];
    let sql = "SELECT host, sum(ticks) > 0 AS ticks, count(interrupts_off) > 0 AS known FROM samples GROUP BY host ORDER BY host";
    for old in ["host-0", "host-1"] {
        let folder = tempfile::tempdir().unwrap();
        for (host, guest) in guests {
            let path = guest_folder(folder.path(), host, "g").join("1-x.parquet");
            if host == old {
                write_without(&file_of(host, guest), &path, "interrupts_off");
            } else {
                fs::copy(file_of(host, guest), path).unwrap();
            }
        }
        let known = guests.map(|(host, _)| format!("{host},true,{}\r\n", host != old));
        let expected = format!("host,ticks,known\r\n{}", known.concat());
        let found = printed(run_in(folder.path(), &["--format", "csv", sql]));
        assert_eq!(found, expected);
        // The views need nothing that is newer.
        printed(run_in(folder.path(), &["top", "--by", "user"]));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = guest_folder(folder.path(), "a", "b").join("1-x.parquet");
    write_without(&file_of("host-0", "db-0"), &path, "nanoseconds");
    assert!(opened(folder.path()).contains("No field named nanoseconds"));
    // In the place of the second file.
    let path = guest_folder(folder.path(), "0", "b").join("1-x.parquet");
    fs::copy(file_of("host-1", "web-2"), path).unwrap();
    let output = run_in(folder.path(), &["SELECT sum(nanoseconds) FROM samples"]);
    assert!(message(output, 1).contains("nanoseconds"));
}

/// Writes the Parquet file at `from` to `to`, with another rate.
fn write_with_rate(from: &Path, to: &Path, hz: u32) {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(from).unwrap()).unwrap();
    let schema = reader.schema().clone();
    let mut writer = ArrowWriter::try_new(File::create(to).unwrap(), schema.clone(), None).unwrap();
    let place = schema.index_of("hz").unwrap();
    for batch in reader.build().unwrap() {
        let batch = batch.unwrap();
        let mut columns = batch.columns().to_vec();
        let rates = UInt32Array::from(vec![hz; batch.num_rows()]);
        columns[place] = cast(&rates, columns[place].data_type()).unwrap();
        writer
            .write(&RecordBatch::try_new(schema.clone(), columns).unwrap())
            .unwrap();
    }
    writer.close().unwrap();
}

/// Ticks of 19 Hz and of 49 Hz are different times: they aren't summed.
#[test]
fn ticks_of_several_rates_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |guest| guest_folder(folder.path(), "host-0", guest).join("1-x.parquet");
    let from = file_of("host-0", "db-0");
    fs::copy(&from, path("db-0")).unwrap();
    write_with_rate(&from, &path("other"), 49);
    let refused = |arguments: &[&str], words: &str| {
        let message = message(run_in(folder.path(), arguments), 1);
        assert!(message.contains(words), "{arguments:?}: {message}");
    };
    let picture = folder.path().join("out");
    let picture = picture.to_str().unwrap();
    for arguments in [
        &["top"][..],
        &["flamegraph", "--output", picture],
        &["--as", picture, "--where", "true"],
    ] {
        refused(arguments, "There are ticks of 19 and of 49 Hz");
    }
    refused(
        &["diff", "--where", "hz = 19", "--where", "hz = 49"],
        "Ticks before are of 19 Hz and after of 49 Hz",
    );
    assert!(!Path::new(picture).exists());
    // As the message advises.
    let text = printed(run_in(
        folder.path(),
        &["top", "--where", "hz = 49", "--json"],
    ));
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["facts"]["hz"], 49, "{document}");
}
