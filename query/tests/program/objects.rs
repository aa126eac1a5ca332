//! A data set in an object store: an S3 server that checks signatures (moto).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

use super::{asked, fleet, program, root};

const URL: &str = "s3://lake/fleet/a";

/// The server, with the fleet's data set.
struct S3 {
    server: Child,
    output: BufReader<ChildStdout>,
    address: Value,
}

impl S3 {
    fn start() -> Self {
        let python = root().join("target/receivers/bin/python");
        assert!(python.is_file(), "no {}: run tests/query", python.display());
        let mut server = Command::new(python)
            .arg(root().join("collect/tests/receivers/s3.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(server.stdout.take().unwrap());
        let mut s3 = Self {
            server,
            output,
            address: Value::Null,
        };
        s3.address = s3.next();
        let folder = fleet().folder.path().display();
        writeln!(s3.server.stdin.as_mut().unwrap(), "put {folder}").unwrap();
        assert_eq!(s3.next().as_array().unwrap().len(), 12);
        s3
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Runs the program with the data set there, and this secret.
    fn run(&self, secret: &str, arguments: &[&str]) -> Output {
        let endpoint = format!("http://127.0.0.1:{}", self.address["port"]);
        let key = self.address["key"].as_str().unwrap();
        let mut program = program();
        program
            .env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "eu-west-1")
            .env("AWS_ACCESS_KEY_ID", key)
            .env("AWS_SECRET_ACCESS_KEY", secret)
            .env("RUST_LOG", "kvmprof_query=debug")
            .args(arguments);
        program.output().unwrap()
    }

    fn secret(&self) -> &str {
        self.address["secret"].as_str().unwrap()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn a_data_set_in_a_store_gives_the_answers_of_its_folder() {
    let s3 = S3::start();
    let sql = "SELECT host, guest, function, sum(ticks) AS ticks FROM samples WHERE host <> 'host-0' \
        GROUP BY host, guest, function ORDER BY host, guest, function";
    let output = s3.run(s3.secret(), &["--data", URL, "--format", "json", "--", sql]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("8 of 12 files"), "{errors}");
    assert!(!errors.contains(s3.secret()), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let found: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!found.is_empty());
    assert_eq!(found, asked(sql));
    // The pictures read it, too.
    let page = [
        "flamegraph",
        "--data",
        URL,
        "--where",
        "host = 'host-1'",
        "--output",
        "-",
    ];
    let output = s3.run(s3.secret(), &page);
    assert!(output.status.success());
    assert!(output.stdout.starts_with(b"<?xml"));
}

#[test]
fn a_store_that_refuses_is_told_without_its_secret() {
    let s3 = S3::start();
    let wrong = "not-the-secret";
    let output = s3.run(wrong, &["--data", URL, "SELECT 1 FROM samples"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("Cannot list s3://lake/fleet/a"), "{errors}");
    assert!(!errors.contains(wrong), "{errors}");
    let output = s3.run(
        s3.secret(),
        &["--data", "s3://lake/other", "SELECT 1 FROM samples"],
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("There is no file DATE/HOST/GUEST"),
        "{errors}"
    );
}
