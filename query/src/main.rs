//! The program `kvmprof-query`.

fn main() -> std::process::ExitCode {
    kvmprof_query::commands::main()
}
