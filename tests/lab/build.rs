//! Builds the lab's own programs.

use std::path::PathBuf;
use std::{env, process};

/// The place of each, and more arguments for the compiler: only programs that are profiled keep
/// their symbols.
const PROGRAMS: [(&str, &str, &[&str]); 3] = [
    ("keeper", "src/keeper.c", &["-s"]),
    ("parallel_port", "src/parallel_port.c", &["-O1", "-s"]),
    ("part_time", "src/linux/part_time.c", &["-O1"]),
];

fn main() {
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else {
        return fail("cargo gave no OUT_DIR");
    };
    let compiler = match cc::Build::new().warnings(true).try_get_compiler() {
        Ok(compiler) => compiler,
        Err(error) => return fail(&format!("no C compiler: {error}")),
    };
    for (name, source, arguments) in PROGRAMS {
        println!("cargo::rerun-if-changed={source}");
        let built = compiler
            .to_command()
            .arg("-static")
            .args(arguments)
            .args([source, "-o"])
            .arg(out.join(name))
            .status();
        match built {
            Ok(status) if status.success() => {}
            Ok(status) => fail(&format!("the C compiler ended with {status} for {source}")),
            Err(error) => fail(&format!("the C compiler cannot be run: {error}")),
        }
    }
}

fn fail(reason: &str) {
    eprintln!("Cannot build the lab's programs: {reason}; apt-get install gcc libc6-dev");
    process::exit(1);
}
