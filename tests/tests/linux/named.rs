//! Frames with the names in reports.

use kvmprof_recording::Sample;
use kvmprof_recording::file::Contents;
use kvmprof_report::symbolize::{CodeAddress, Resolver};
use kvmprof_tests::linux::Finished;

/// A frame's function, and its file or module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFrame {
    pub function: String,
    pub module: String,
}

/// A sample, and its frames, innermost first: those in the kernel, and in user mode.
#[derive(Debug)]
pub struct NamedSample {
    pub sample: Sample,
    pub kernel: Vec<NamedFrame>,
    pub user: Vec<NamedFrame>,
}

impl NamedSample {
    /// Whether `comm` is the name of its thread.
    pub fn is_of(&self, comm: &str) -> bool {
        self.sample.comm.split(|byte| *byte == 0).next() == Some(comm.as_bytes())
    }
}

/// A recording, and all samples with their names.
pub fn read(run: &Finished, name: &str) -> (Contents, Vec<NamedSample>) {
    let (contents, samples) = run.recording(name);
    let resolver = Resolver::from_contents(&contents);
    let named = |sample: &Sample, addresses: &[u64], is_kernel| {
        let mappings = resolver.mappings_of(sample);
        let name = |address: &u64| {
            let resolved = resolver.resolve(CodeAddress {
                mappings,
                address: *address,
                is_kernel,
            });
            let frame = resolved.frames.last().unwrap();
            NamedFrame {
                function: frame.function.as_ref().to_owned(),
                module: frame.module.as_ref().to_owned(),
            }
        };
        addresses.iter().map(name).collect()
    };
    let seen = samples.into_iter().map(|(sample, frames)| {
        let (kernel, user) = frames.split_at(usize::from(sample.stack.kernel));
        NamedSample {
            kernel: named(&sample, kernel, true),
            user: named(&sample, user, false),
            sample,
        }
    });
    let seen = seen.collect();
    (contents, seen)
}
