use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use parquet::basic::{Encoding, PageType};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use super::*;
use crate::batch::testing::batch;

#[test]
fn dates_are_correct() {
    for (seconds, day) in [
        (0, "1970-01-01"),
        (951_782_400, "2000-02-29"),
        (1_709_251_199, "2024-02-29"),
        (1_709_251_200, "2024-03-01"),
        (4_102_444_799, "2099-12-31"),
        // The clock of names of files ends here.
        (u64::MAX, "2554-07-21"),
    ] {
        assert_eq!(date(seconds), day);
    }
}

#[test]
fn names_cannot_leave_the_folder() {
    assert_eq!(part_of_path("../a b\n"), "..%2Fa%20b%0A");
    assert_eq!(part_of_path("db-1"), "db-1");
    assert!(part_of_path(&"é".repeat(500)).len() < MAX_PART + 3);
}

#[test]
fn the_same_batches_give_the_same_files_which_have_every_tick() {
    let folder = tempfile::tempdir().unwrap();
    let target = Folder(folder.path().to_owned());
    let mut sink = ParquetSink::new(Box::new(target), 100);
    let batches = [
        batch(1_709_251_190, &["a", "b"], 7),
        batch(1_709_251_200, &["a"], 9),
    ];
    for _ in 0..2 {
        assert_eq!(sink.parts(&batches), 3);
        for part in 0..3 {
            let windows = 1;
            let ticks = if part == 2 { 12 } else { 10 };
            assert_eq!(sink.part(&batches, part), (windows, ticks));
            let departure = Arc::new(Departure::new(|| unreachable!()));
            sink.send(&batches, part, &departure).unwrap();
        }
        sink.forget();
    }
    let names = [
        "date=2024-02-29/host=host-1/guest=a/1709251190-b007.parquet",
        "date=2024-02-29/host=host-1/guest=b/1709251190-b007.parquet",
        "date=2024-03-01/host=host-1/guest=a/1709251200-b007.parquet",
    ];
    let mut ticks = 0;
    for name in names {
        let path = folder.path().join(name);
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        for row in reader.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            for (name, field) in row.get_column_iter() {
                if let (true, parquet::record::Field::Long(count)) = (name == "ticks", field) {
                    ticks += count;
                }
            }
        }
        let files = fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(files.count(), 1);
    }
    assert_eq!(ticks, 10 + 10 + 12);
}

#[test]
fn files_are_for_their_user_alone_and_follow_no_link() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("lake");
    let batch = batch(1_709_251_190, &["a"], 7);
    let send = || write(&Folder(root.clone()), std::slice::from_ref(&batch));
    send().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let folder = root.join(folder_of(&batch, &batch.windows[0]));
    let path = folder.join("1709251190-b007.parquet");
    assert_eq!(mode(&path), 0o600);
    for above in folder
        .ancestors()
        .take_while(|above| *above != place.path())
    {
        assert_eq!(mode(above), 0o700, "{}", above.display());
    }

    let precious = place.path().join("precious");
    fs::write(&precious, "old").unwrap();
    fs::remove_file(&path).unwrap();
    symlink(&precious, &path).unwrap();
    assert!(send().is_err());
    fs::remove_file(&path).unwrap();
    // The name of a temporary file is taken by a link, or by a file of a killed collector.
    let names = [
        ".1709251190-b007.tmp".to_owned(),
        temporary_name("1709251190-b007.parquet"),
    ];
    for name in &names {
        symlink(&precious, folder.join(name)).unwrap();
    }
    send().unwrap();
    assert_eq!(fs::read(precious).unwrap(), b"old");
    assert!(fs::symlink_metadata(folder.join(&names[1])).is_err());
}

/// The first temporary name of this process for the file `name`.
fn temporary_name(name: &str) -> String {
    format!(".{name}.{}-0", std::process::id())
}

/// A file with the rows of `batch`.
fn read(folder: &Path, batch: &Batch) -> SerializedFileReader<File> {
    write(&Folder(folder.to_owned()), std::slice::from_ref(batch)).unwrap();
    let place = folder.join(folder_of(batch, &batch.windows[0]));
    let file = fs::read_dir(place).unwrap().next().unwrap().unwrap();
    SerializedFileReader::new(File::open(file.path()).unwrap()).unwrap()
}

/// Each name is in a column's dictionary once, and the column's values are indexes.
#[test]
fn texts_are_dictionary_encoded() {
    let folder = tempfile::tempdir().unwrap();
    let reader = read(folder.path(), &batch(1_709_251_190, &["a"], 7));
    let group = reader.metadata().row_group(0);
    let texts: Vec<usize> = (0..group.num_columns())
        .filter(|place| group.column(*place).column_type() == parquet::basic::Type::BYTE_ARRAY)
        .collect();
    let names: Vec<String> = (texts.iter())
        .map(|place| group.column(*place).column_path().string())
        .collect();
    let expected = [
        "boot",
        "kernel",
        "process",
        "thread",
        "mode",
        "function",
        "module",
        "stack.list.element",
        "modules.list.element",
        "labels.key_value.key",
        "labels.key_value.value",
    ];
    assert_eq!(names, expected);
    let group = reader.get_row_group(0).unwrap();
    for place in texts {
        let pages = group.get_column_page_reader(place).unwrap();
        for (number, page) in pages.map(Result::unwrap).enumerate() {
            let expected = match number {
                0 => (PageType::DICTIONARY_PAGE, Encoding::PLAIN),
                _ => (PageType::DATA_PAGE, Encoding::RLE_DICTIONARY),
            };
            assert_eq!((page.page_type(), page.encoding()), expected, "{place}");
        }
    }
}

/// A column of the rows of `batch`, by process.
fn found(batch: &Batch, wanted: &str) -> BTreeMap<String, Field> {
    let folder = tempfile::tempdir().unwrap();
    let reader = read(folder.path(), batch);
    let rows = reader.get_row_iter(None).unwrap();
    let rows = rows.map(|row| {
        let row = row.unwrap();
        let column = |wanted| {
            let mut columns = row.get_column_iter();
            columns.find(|(name, _)| *name == wanted).unwrap().1.clone()
        };
        (column("process").to_string(), column(wanted))
    });
    rows.collect()
}

#[test]
fn rows_have_the_labels_of_the_configuration_and_of_their_process() {
    let text = |text: &str| Field::Str(text.to_owned());
    let labels = |batch: &Batch, process: &str| match &found(batch, "labels")[process] {
        Field::MapInternal(map) => map.entries().to_vec(),
        other => panic!("{other:?}"),
    };
    let mut batch = batch(1_709_251_190, &["a"], 7);
    batch.labels = BTreeMap::from([("zone".to_owned(), "north".to_owned())]);
    let own = [("user", "1000"), ("zone", "of the guest")];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    batch.label_sets = vec![own.into()];
    batch.windows[0].rows[0].labels = Some(0);
    // A guest can't replace what the configuration says.
    let zone = (text("zone"), text("north"));
    let user = (text("user"), text("1000"));
    assert_eq!(labels(&batch, "\"worker\""), [zone.clone(), user]);
    assert_eq!(labels(&batch, "\"idle\""), [zone]);
}

#[test]
fn ticks_with_interrupts_off_are_counted_or_null() {
    let found = |batch: &Batch| found(batch, "interrupts_off");
    let mut batch = batch(1_709_251_190, &["a"], 7);
    let of = |worker, idle| {
        BTreeMap::from([
            ("\"worker\"".to_owned(), worker),
            ("\"idle\"".to_owned(), idle),
        ])
    };
    assert_eq!(found(&batch), of(Field::Long(2), Field::Long(1)));
    batch.windows[0].rows[0].interrupts_off = None;
    assert_eq!(found(&batch), of(Field::Null, Field::Long(1)));
}
