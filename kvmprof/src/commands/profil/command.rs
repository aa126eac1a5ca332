//! `kvmprof profil`.

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use kvmprof_abi::profil::{Call, Function, MAX_KEPT};
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage};
use kvmprof_recording::file::NewFile;

use super::arguments::{ProcessArguments, address, buffer_size, scale};
use super::device::ProcessProfile;
use super::document::Collected;
use super::gmon::Gmon;
use super::histogram::{Hit, Layout, USUAL_SCALE};
use super::process::{CodeName, Process};
use super::region::{self, NamedCode};
use super::session::{Session, with_session};
use super::table::{Row, function_rows, single_rows};
use crate::commands::recordings::{NO_OUTPUT, Naming, check_output, is_standard};
use crate::commands::units::format_memory;

/// Make a histogram of where a process of a running guest spends its time
///
/// As profil(2): while the process runs in user mode, the count for its program counter is incremented, 100 times a
/// second on each vCPU. The result is a table of its functions, and with --output a file for gprof -p. Without a region
/// it is of the process's program. The guest's kernel does nothing for it, and the process notices nothing.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0, also after Ctrl-C; 1 when there is no guest at the socket, it has no clock, the process \
    did not run, there is no such code, or the file cannot be written; 2 for wrong options.\n\n\
    Examples:\n  kvmprof profil --socket /run/guest.sock --pid 230 --seconds 10\n  \
    kvmprof profil --pid 230 --module libc.so.6 --counts\n  \
    kvmprof profil --pid 230 --seconds 30 --output gmon.out && gprof -b -p ./program gmon.out"
)]
pub struct ProfilArguments {
    #[command(flatten)]
    process: ProcessArguments,
    /// The region's first address, in hexadecimal with 0x
    #[arg(long, value_name = "ADDRESS", value_parser = address, allow_negative_numbers = true, requires = "bufsiz", conflicts_with_all = ["function", "module"])]
    offset: Option<u64>,
    /// Bytes of the histogram, 2 for each count: with the scale they tell where the region ends
    #[arg(long, value_name = "BYTES", value_parser = buffer_size, allow_negative_numbers = true, requires = "offset")]
    bufsiz: Option<u64>,
    /// How much smaller the histogram is than the code, as a 16-bit fraction: 0xffff stands for 2 bytes of code in each
    /// count, 0x4000 for 8, 0x2000 for 16 [default: 0x4000, or less for code that is too long for that]
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true)]
    scale: Option<u32>,
    /// The region is this function, by its name in the source or in the symbol table
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// The region is the code of this file, or the function is in it: its path in the guest, or the last part of that
    #[arg(long, value_name = "FILE")]
    module: Option<String>,
    /// Round and saturate as AIX: to the next count, at 65535. Else as Solaris: to the count before, and a count of 32767
    /// ends it
    #[arg(long)]
    aix: bool,
    /// A row for each count that isn't 0, by address, instead of each function; all of them, so that --top can't be given
    #[arg(long, conflicts_with = "top")]
    counts: bool,
    /// Write the histogram to this file, too, for gprof -p. The scale has to be 0x8000, 0x4000 or another half of that,
    /// down to 4
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the output file even if it is a recording
    #[arg(long)]
    force: bool,
}

impl Command for ProfilArguments {
    /// Makes the histogram, prints it and writes the file.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        self.check()?;
        with_session(&self.process, |session| {
            let file = self.output.as_deref().map(|path| {
                let file = NewFile::create(path);
                file.with_context(|| cannot_write(path))
            });
            let file = file.transpose()?;
            let layout = self.layout(session, console)?;
            let ending = session.collect(&self.call(&layout))?;
            let (status, counts) = session.profile.at_once(ProcessProfile::counts)?;
            session.finish(&status, ending)?;
            let process = &session.process;
            let rows = self.rows(process, &layout.hits(&counts));
            let collected = Collected {
                pid: self.process.pid,
                stored: self.process.stored_ticks(process),
                ending,
                status: &status,
                layout: Some(&layout),
                rows: &rows,
                top: if self.counts {
                    rows.len()
                } else {
                    self.process.most_rows()
                },
            };
            let printed = collected.write(self.process.json, console.text());
            printed.context(NO_OUTPUT)?;
            session.say_ending(ending, console);
            if let Some((file, path)) = file.zip(self.output.as_deref()) {
                self.write_gmon(&session.process, &layout, &counts, file, path, console)?;
            }
            Ok(ExitStatus::SUCCESS)
        })
    }
}

impl ProfilArguments {
    /// Checks the options before a guest is contacted.
    fn check(&self) -> anyhow::Result<()> {
        let Some(output) = &self.output else {
            return Ok(());
        };
        if is_standard(output) {
            return Err(usage(
                "gprof reads files, not pipes: name one with --output",
            ));
        }
        let scale = self.scale.unwrap_or(USUAL_SCALE);
        if !scale.is_power_of_two() || scale == 2 {
            return Err(usage(format_args!(
                "gprof takes histograms with equally many bytes of code in each count: give --scale 0x8000, 0x4000, \
                 0x2000 or another half of that down to 4, not {scale:#x}"
            )));
        }
        check_output(output, &[], Naming::output(self.force))
    }

    /// The layout of the requested region, or of the program.
    fn layout(
        &self,
        session: &mut Session<'_>,
        console: &mut Console<'_>,
    ) -> anyhow::Result<Layout> {
        if let (Some(offset), Some(size)) = (self.offset, self.bufsiz) {
            return Ok(Layout {
                offset,
                size,
                scale: self.scale.unwrap_or(USUAL_SCALE),
                aix: self.aix,
            });
        }
        session.wait_for_code(console)?;
        let named = NamedCode {
            function: self.function.as_deref(),
            module: self.module.as_deref(),
        };
        let code = region::find(&session.process, named)?;
        let layout = Layout::of_region(code.begin, code.end, self.scale, self.aix);
        let Some(layout) = layout else {
            bail!(
                "A histogram of {:#x} to {:#x} takes more than {} at this scale: give a smaller --scale",
                code.begin,
                code.end,
                format_memory(MAX_KEPT)
            );
        };
        Ok(layout)
    }

    fn call(&self, layout: &Layout) -> Call {
        let function = if self.aix {
            Function::AixProfil
        } else {
            Function::Profil
        };
        Call {
            offset: layout.offset,
            scale: layout.scale,
            ..self.process.call(function, layout.size)
        }
    }

    fn rows(&self, process: &Process, hits: &[Hit]) -> Vec<Row> {
        let name = |hit: &Hit| -> CodeName { process.name(hit.begin, hit.last) };
        if self.counts {
            single_rows(hits, name)
        } else {
            function_rows(hits, name)
        }
    }

    /// Writes the file for gprof, and prints its path.
    fn write_gmon(
        &self,
        process: &Process,
        layout: &Layout,
        counts: &[u16],
        file: NewFile,
        path: &Path,
        console: &mut Console<'_>,
    ) -> anyhow::Result<()> {
        let hz = self.process.stored_ticks(process).hz();
        let linked = process
            .resolver
            .linked_address(process.mappings(), layout.offset);
        if linked.is_none() {
            console.warn(
                "nothing is known of the file's segments: the addresses for gprof are those in memory; --sysroot may help",
            );
        }
        let Some(gmon) = Gmon::new(layout, linked.unwrap_or(layout.offset), hz) else {
            bail!("gprof takes no histogram of {}", layout.describe());
        };
        let mut out = BufWriter::new(file);
        let written = gmon.write(counts, &mut out);
        let file = written.and_then(|()| {
            out.into_inner()
                .map_err(std::io::IntoInnerError::into_error)
        });
        let kept = file.and_then(|mut file| file.keep());
        kept.with_context(|| cannot_write(path))?;
        if self.process.json {
            return Ok(());
        }
        let line = writeln!(
            console.text(),
            "\n{}: read it by gprof -b -p PROGRAM {0}",
            path.display()
        );
        line.context(NO_OUTPUT)
    }
}

fn cannot_write(path: &Path) -> String {
    format!("Cannot write {}", path.display())
}
