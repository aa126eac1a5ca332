//! Reads a stream, also a damaged one.

use std::io::{self, Read};

use kvmprof_abi::pcs::Format;
use kvmprof_abi::stream::{Malformed, StreamRecord, detect};

use super::Profile;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum PcstatError {
    /// The input can't be read.
    #[error("Cannot read {name}")]
    Read {
        /// The input's name.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// The input doesn't begin like a stream.
    #[error("{name} is no stream of getpc: it doesn't begin with a START record")]
    NotAStream {
        /// The input's name.
        name: String,
    },
    /// The input is empty.
    #[error("{name} is empty: getpc wrote nothing, see its message")]
    Empty {
        /// The input's name.
        name: String,
    },
    /// There is no input.
    #[error("Standard input is a terminal: name a file, or pipe getpc's output into pcstat")]
    Terminal,
    /// Signals can't be caught.
    #[error("Cannot catch signals")]
    Signals(#[source] io::Error),
    /// The report can't be written.
    #[error("Cannot write the report")]
    Write(#[source] io::Error),
}

/// Bytes of one read, which is more than any record has.
const READ_SIZE: u64 = 65536;

/// Reads `input`, called `name` in error messages. A damaged stream is read up to the damage, which
/// [`Profile::problems`] describes.
///
/// # Errors
/// The input can't be read, or isn't a stream.
pub fn read_profile(
    input: &mut dyn Read,
    name: &str,
    format: Option<Format>,
) -> Result<Profile, PcstatError> {
    let mut reader = StreamReader {
        input,
        bytes: Vec::new(),
        position: 0,
        offset: 0,
        ended: false,
    };
    let read = |source| PcstatError::Read {
        name: name.to_owned(),
        source,
    };
    reader.fill().map_err(read)?;
    if reader.bytes.is_empty() {
        return Err(PcstatError::Empty {
            name: name.to_owned(),
        });
    }
    let detected = detect(&reader.bytes).ok_or_else(|| PcstatError::NotAStream {
        name: name.to_owned(),
    })?;
    let mut profile = Profile {
        format: format.unwrap_or(detected),
        ..Profile::default()
    };
    loop {
        let before = reader.offset;
        match reader.next(profile.format).map_err(read)? {
            Ok(None) => break,
            Ok(Some(record)) => {
                if let Some(problem) = out_of_place(&profile, &record) {
                    profile
                        .problems
                        .push(format!("Byte {before}: {problem}; the rest is left out"));
                    break;
                }
                profile.add(&record);
            }
            Err(malformed) => {
                profile.problems.push(describe(malformed, before));
                break;
            }
        }
    }
    judge(&mut profile);
    Ok(profile)
}

fn describe(malformed: Malformed, offset: u64) -> String {
    match malformed {
        Malformed::Truncated(_) => {
            format!("Byte {offset}: the stream ends within a record, it was cut short")
        }
        malformed => format!("Byte {offset}: {malformed}; the rest is left out"),
    }
}

/// The problem of `record` after those before it, if any.
fn out_of_place(profile: &Profile, record: &StreamRecord) -> Option<&'static str> {
    let trailing = matches!(record, StreamRecord::Pstat(_) | StreamRecord::Comm(_));
    match record {
        StreamRecord::Start(_) if profile.start.is_some() => Some("another run starts here"),
        _ if !trailing && profile.stop.is_some() => Some("a record after STOP"),
        _ if trailing && profile.stop.is_none() => Some("a record of the trailer before STOP"),
        _ => None,
    }
}

/// Adds the problems that show at the end: missing records and wrong sums.
fn judge(profile: &mut Profile) {
    let Some(pstat) = &profile.pstat else {
        // One problem is enough for a stream without an end.
        if profile.problems.is_empty() {
            if profile.stop.is_none() {
                profile
                    .problems
                    .push("No STOP record: getpc was killed, or hasn't ended yet".to_owned());
            } else if profile.format == Format::Native {
                let problem =
                    "No PSTAT record: getpc lost the device, so loss and rate are unknown";
                profile.problems.push(problem.to_owned());
            }
        }
        return;
    };
    let ledger = &pstat.status.ledger;
    let samples = profile.tally.samples();
    let merged = profile.tally.total() - samples;
    if !ledger.balances() {
        profile
            .problems
            .push("The ledger of the PSTAT record doesn't balance".to_owned());
    }
    if (ledger.recorded, ledger.merged) != (samples, merged) {
        profile.problems.push(format!(
            "Records are missing: the stream has {samples} samples and {merged} merged ticks, \
             the device delivered {} and {}",
            ledger.recorded, ledger.merged
        ));
    }
}

/// Reads records from an input.
struct StreamReader<'a> {
    input: &'a mut dyn Read,
    bytes: Vec<u8>,
    /// The offset of the next record in `bytes`.
    position: usize,
    /// Its offset in the stream.
    offset: u64,
    ended: bool,
}

impl StreamReader<'_> {
    /// Reads more, unless the input has ended.
    fn fill(&mut self) -> io::Result<()> {
        self.bytes.drain(..self.position);
        self.position = 0;
        let count = (&mut *self.input)
            .take(READ_SIZE)
            .read_to_end(&mut self.bytes)?;
        self.ended = u64::try_from(count).is_ok_and(|count| count < READ_SIZE);
        Ok(())
    }

    /// The next record, `None` at the end.
    fn next(&mut self, format: Format) -> io::Result<Result<Option<StreamRecord>, Malformed>> {
        loop {
            let rest = self.bytes.get(self.position..).unwrap_or_default();
            if rest.is_empty() && self.ended {
                return Ok(Ok(None));
            }
            match StreamRecord::decode(format, rest) {
                Ok((record, size)) => {
                    self.position += size;
                    self.offset += u64::try_from(size).unwrap_or(u64::MAX);
                    return Ok(Ok(Some(record)));
                }
                Err(Malformed::Truncated(_)) if !self.ended => self.fill()?,
                Err(malformed) => return Ok(Err(malformed)),
            }
        }
    }
}
