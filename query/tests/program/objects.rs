//! A data set in object stores: those of the collector's tests, which check signatures and tokens.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

use super::{asked, fleet, message, printed, program, root};

const S3: &str = "s3.py";
const GOOGLE: &str = "gcs.py";
const AZURE: &str = "azure_blobs.py";

/// A store, with the fleet's data set.
struct Store {
    server: Child,
    output: BufReader<ChildStdout>,
    address: Value,
}

impl Store {
    fn start(script: &str) -> Self {
        let python = root().join("target/receivers/bin/python");
        assert!(python.is_file(), "no {}: run tests/query", python.display());
        let mut server = Command::new(python)
            .arg(root().join("collect/tests/receivers").join(script))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(server.stdout.take().unwrap());
        let mut store = Self {
            server,
            output,
            address: Value::Null,
        };
        store.address = store.next();
        let folder = fleet().folder.path().display();
        writeln!(store.server.stdin.as_mut().unwrap(), "put {folder}").unwrap();
        assert_eq!(store.next().as_array().unwrap().len(), 12);
        store
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Runs the program with the store's environment, and this secret.
    fn run(&self, secret: &str, arguments: &[&str]) -> Output {
        let mut program = program();
        for (name, value) in self.address["environment"].as_object().unwrap() {
            let value = value.as_str().unwrap();
            program.env(
                name,
                if value == self.secret() {
                    secret
                } else {
                    value
                },
            );
        }
        program.args(arguments).output().unwrap()
    }

    fn text(&self, member: &str) -> &str {
        self.address[member].as_str().unwrap()
    }

    fn url(&self) -> &str {
        self.text("url")
    }

    fn secret(&self) -> &str {
        self.text("secret")
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn check_that_it_gives_the_answers_of_its_folder(script: &str) {
    let store = Store::start(script);
    let sql = "SELECT host, guest, function, sum(ticks) AS ticks FROM samples WHERE host <> 'host-0' \
        GROUP BY host, guest, function ORDER BY host, guest, function";
    let output = store.run(
        store.secret(),
        &["--data", store.url(), "--format", "json", "--", sql],
    );
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!errors.contains(store.secret()), "{errors}");
    let found: Vec<Value> = printed(output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!found.is_empty());
    assert_eq!(found, asked(sql));
    let plan = format!("EXPLAIN {sql}");
    let plan = printed(store.run(store.secret(), &["--data", store.url(), "--", &plan]));
    let reads = |host: &str| plan.contains(&format!("host={host}/"));
    assert_eq!(["host-0", "host-1"].map(reads), [false, true], "{plan}");
    // The pictures read it, too.
    let page = [
        "flamegraph",
        "--data",
        store.url(),
        "--where",
        "host = 'host-1'",
        "--output",
        "-",
    ];
    assert!(printed(store.run(store.secret(), &page)).starts_with("<?xml"));
}

#[test]
fn a_data_set_in_s3_gives_the_answers_of_its_folder() {
    check_that_it_gives_the_answers_of_its_folder(S3);
}

#[test]
fn a_data_set_in_google_cloud_storage_gives_the_answers_of_its_folder() {
    check_that_it_gives_the_answers_of_its_folder(GOOGLE);
}

#[test]
fn a_data_set_in_azure_gives_the_answers_of_its_folder() {
    check_that_it_gives_the_answers_of_its_folder(AZURE);
}

#[test]
fn errors_of_a_store_do_not_contain_its_secret() {
    for script in [S3, GOOGLE, AZURE] {
        let store = Store::start(script);
        let wrong = store.text("wrong");
        let output = store.run(wrong, &["--data", store.url(), "SELECT 1 FROM samples"]);
        let errors = message(output, 1);
        let expected = format!("Cannot list {}", store.url());
        assert!(errors.contains(&expected), "{errors}");
        assert!(!errors.contains(wrong), "{errors}");
        let other = store.url().replace("fleet/a", "other");
        let nothing = ["--data", &other, "SELECT 1 FROM samples"];
        let errors = message(store.run(store.secret(), &nothing), 1);
        assert!(
            errors.contains("There is no file DATE/HOST/GUEST"),
            "{errors}"
        );
    }
}
