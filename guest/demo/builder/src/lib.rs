//! Builds bare-metal guests with the host's C compiler and linker, for build scripts. Every guest has the same small
//! kernel and brings a workload: the function `run_workload` that `kernel.h` declares.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// General registers only: on a host without VT-x or SVM, kernel mode is interpreted, without SSE.
const FLAGS: &[&str] = &[
    "-std=c11",
    "-O2",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-pic",
    "-fno-pie",
    // Stacks are unwound with these tables at any instruction. Frame pointers would cost the interpreted kernel time.
    "-fasynchronous-unwind-tables",
    "-fno-optimize-sibling-calls",
    "-fcf-protection=none",
    "-mgeneral-regs-only",
    "-mno-red-zone",
    "-mcmodel=small",
];

/// Builds the image `name` in `OUT_DIR`, a static ELF64 executable, and makes cargo rebuild it when a source changes.
///
/// The folder `kernel` has the kernel's sources and its linker script `link.ld`; its headers are on the include path.
/// `folders` have further sources, without their subfolders. All are relative to the package that is built.
///
/// # Errors
/// A folder can't be read, the C compiler or the linker fails, or the caller isn't a build script.
pub fn build(name: &str, kernel: &str, folders: &[&str]) -> io::Result<()> {
    let mut sources = Vec::new();
    for folder in [kernel].iter().chain(folders) {
        println!("cargo:rerun-if-changed={folder}");
        sources.extend(sources_in(Path::new(folder))?);
    }
    let mut compile = cc::Build::new();
    compile
        .files(&sources)
        .include(kernel)
        .no_default_flags(true)
        .warnings(true)
        .extra_warnings(true)
        .cargo_metadata(false);
    for flag in FLAGS {
        compile.flag(flag);
    }
    // GCC would turn loops into calls of memset; Clang has no such flag.
    compile.flag_if_supported("-fno-tree-loop-distribute-patterns");
    let objects = compile
        .try_compile_intermediates()
        .map_err(|error| io::Error::other(error.to_string()))?;
    let script = Path::new(kernel).join("link.ld");
    let output = PathBuf::from(required("OUT_DIR")?).join(name);
    link(compile.get_compiler().path(), &script, &objects, &output)
}

/// The C and assembly files of a folder, in order.
fn sources_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "c" || extension == "S")
        {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}

fn required(variable: &str) -> io::Result<OsString> {
    env::var_os(variable).ok_or_else(|| io::Error::other(format!("cargo did not set {variable}")))
}

fn link(compiler: &Path, script: &Path, objects: &[PathBuf], output: &Path) -> io::Result<()> {
    let status = Command::new(compiler)
        .args([
            "-nostdlib",
            "-static",
            "-no-pie",
            "-Wl,--build-id=none",
            "-Wl,-z,max-page-size=4096",
        ])
        .args(["-Wl,--no-warn-rwx-segments", "-T"])
        .arg(script)
        .arg("-o")
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
