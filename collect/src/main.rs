//! The program `kvmprof-collect`.

fn main() -> std::process::ExitCode {
    kvmprof_collect::commands::main()
}
