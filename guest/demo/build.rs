//! Builds the guest's image with the host's C compiler and linker.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// General registers only: on a host without VT-x or SVM kernel mode is interpreted, without SSE.
const FLAGS: &[&str] = &[
    "-std=c11",
    "-O2",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-pic",
    "-fno-pie",
    "-fno-asynchronous-unwind-tables",
    "-fcf-protection=none",
    "-mgeneral-regs-only",
    "-mno-red-zone",
    "-mcmodel=small",
];

fn main() -> io::Result<()> {
    let image = Path::new("image");
    println!("cargo:rerun-if-changed=image");
    let mut sources = Vec::new();
    for folder in ["", "virtio", "attacks", "workloads"] {
        for entry in image.join(folder).read_dir()? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "c" || extension == "S")
            {
                sources.push(path);
            }
        }
    }
    sources.sort();

    let mut compile = cc::Build::new();
    compile
        .files(&sources)
        .no_default_flags(true)
        .warnings(true)
        .extra_warnings(true)
        .cargo_metadata(false);
    for flag in FLAGS {
        compile.flag(flag);
    }
    // GCC would else make calls of memset out of loops; Clang knows no such flag.
    compile.flag_if_supported("-fno-tree-loop-distribute-patterns");
    let objects = compile
        .try_compile_intermediates()
        .map_err(|error| io::Error::other(error.to_string()))?;
    let output = PathBuf::from(required("OUT_DIR")?).join("demo.elf");
    link(compile.get_compiler().path(), &objects, &output)
}

fn required(variable: &str) -> io::Result<OsString> {
    env::var_os(variable).ok_or_else(|| io::Error::other(format!("cargo did not set {variable}")))
}

fn link(compiler: &Path, objects: &[PathBuf], output: &Path) -> io::Result<()> {
    let status = Command::new(compiler)
        .args([
            "-nostdlib",
            "-static",
            "-no-pie",
            "-Wl,--build-id=none",
            "-Wl,-z,max-page-size=4096",
        ])
        .args(["-Wl,--no-warn-rwx-segments", "-T", "image/link.ld", "-o"])
        .arg(output)
        .args(objects)
        .status()?;
    if !status.success() {
        return Err(io::Error::other(format!(
            "linking the guest's image failed: {status}"
        )));
    }
    Ok(())
}
