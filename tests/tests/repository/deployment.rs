//! The container image, and the chart for Kubernetes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvmprof_tests::kvmprof;
use serde_json::Value;

use crate::packages::{package, succeeds};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Builds the image out of the packages in `debs`, and unpacks it into a folder.
pub fn the_image_has_the_packages_files(debs: &Path) {
    let script = root().join("packaging/build-image");
    succeeds(Command::new(script).arg(debs));
    let archive = debs.join(format!("kvmprof_{VERSION}.oci.tar"));
    let unpacked = tempfile::tempdir().unwrap();
    let unpack = |archive: &Path, into: &Path| {
        let mut tar = Command::new("tar");
        tar.arg("--extract").arg("--file").arg(archive);
        succeeds(tar.arg("--directory").arg(into));
    };
    unpack(&archive, unpacked.path());
    let blob = |described: &Value| -> PathBuf {
        let digest = described["digest"].as_str().unwrap();
        unpacked.path().join("blobs").join(digest.replace(':', "/"))
    };
    let read =
        |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let index = read(unpacked.path().join("index.json"));
    let manifest = read(blob(&index["manifests"][0]));
    let config = read(blob(&manifest["config"]));
    let entry = serde_json::json!(["/usr/bin/kvmprof-collect"]);
    assert_eq!(config["config"]["Entrypoint"], entry);
    let image = tempfile::tempdir().unwrap();
    for layer in manifest["layers"].as_array().unwrap() {
        unpack(&blob(layer), image.path());
    }
    let packages = tempfile::tempdir().unwrap();
    for name in ["kvmprof", "kvmprof-collect"] {
        let mut extract = Command::new("dpkg-deb");
        extract.arg("--extract").arg(package(debs, name));
        succeeds(extract.arg(packages.path()));
    }
    let mut compare = Command::new("diff");
    compare.arg("--recursive").arg(image.path());
    succeeds(compare.arg(packages.path()));
    for program in ["kvmprof", "kvmprof-collect"] {
        let path = image.path().join("usr/bin").join(program);
        let says = succeeds(Command::new(path).arg("--version"));
        assert_eq!(says, format!("{program} {VERSION}\n"));
    }
}

/// The chart's objects with these values, which are valid by the schemas of Kubernetes.
fn objects(values: &Value) -> Vec<Value> {
    let mut check = Command::new(root().join("target/chart/bin/python"));
    check.arg(root().join("tests/tests/repository/chart/check.py"));
    check.arg(root().join("packaging/helm"));
    let objects = succeeds(check.arg(values.to_string()));
    objects
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn the_charts_objects_are_valid_and_have_what_is_asked() {
    let text = fs::read_to_string(root().join("packaging/helm/Chart.yaml")).unwrap();
    assert!(
        text.contains(&format!("appVersion: \"{VERSION}\"")),
        "{text}"
    );
    for (values, pointer, expected) in [
        (
            serde_json::json!({}),
            "/containers/1/image",
            serde_json::json!(format!("kvmprof:{VERSION}")),
        ),
        (
            serde_json::json!({"nodeSelector": {"kvm": "true"}}),
            "/nodeSelector/kvm",
            serde_json::json!("true"),
        ),
        (
            serde_json::json!({"tolerations": [{"operator": "Exists"}]}),
            "/tolerations/0/operator",
            serde_json::json!("Exists"),
        ),
    ] {
        let objects = objects(&values);
        let pod = &objects[1]["spec"]["template"]["spec"];
        assert_eq!(pod.pointer(pointer), Some(&expected), "{pod}");
    }
}

/// The collector takes the chart's configuration.
#[test]
fn the_charts_configuration_is_valid() {
    let objects = objects(&serde_json::json!({}));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("collect.toml");
    fs::write(&path, objects[0]["data"]["collect.toml"].as_str().unwrap()).unwrap();
    let mut collect = Command::new(kvmprof().with_file_name("kvmprof-collect"));
    collect
        .arg("--config")
        .arg(&path)
        .args(["--host", "node-1"]);
    succeeds(collect.args(["--once", "--window", "1", "--sockets", "/nowhere/*.sock"]));
}

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap()
}
