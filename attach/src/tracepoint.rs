//! Tracepoints of the host's KVM, its scheduler and its interrupts, as tracefs describes them (Linux `Documentation/trace/events.rst`).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// The places of tracefs (Linux `Documentation/trace/ftrace.rst`). The second one is in debugfs.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Why a tracepoint of KVM isn't known.
#[derive(Debug, thiserror::Error)]
pub enum TracepointError {
    /// There is no tracefs.
    #[error("the host's tracefs isn't mounted: mount -t tracefs tracefs /sys/kernel/tracing")]
    NotMounted,
    /// The host's KVM doesn't have it.
    #[error("the host's KVM has no tracepoint kvm:{0}")]
    Missing(&'static str),
    /// This process may not read its description.
    #[error("the host doesn't let kvmprof read {folder}: {error}")]
    Refused {
        /// The place of tracefs.
        folder: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The description has no number.
    #[error("{folder} has no number for kvm:{name}")]
    NoNumber {
        /// The place of tracefs.
        folder: &'static str,
        /// The tracepoint.
        name: &'static str,
    },
    /// Its record lacks a member, or has it in another form.
    #[error(
        "the tracepoint kvm:{name} of the host's kernel has no member {member} of a known size: this version of kvmprof doesn't support this kernel"
    )]
    NoMember {
        /// The tracepoint.
        name: &'static str,
        /// The member.
        member: &'static str,
    },
}

/// A tracepoint of KVM, or of another part of the host's kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    name: &'static str,
    /// Perf's number of it.
    pub id: u64,
    /// The description of its record.
    format: String,
}

/// A number in a tracepoint's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it begins, in bytes.
    pub offset: i16,
    /// Its size in bytes: 1, 2, 4 or 8.
    pub bytes: u8,
}

/// Instruction sets by which reasons of exits are named (`KVM_ISA_*`, `arch/x86/kvm/trace.h`).
pub(crate) const ISA_VMX: u64 = 1;
pub(crate) const ISA_SVM: u64 = 2;

/// The members of `kvm_exit` that programs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitMembers {
    /// The reason, as the processor has given it.
    pub reason: Member,
    /// By which reasons are named (`KVM_ISA_*`).
    pub isa: Member,
    /// The guest's program counter.
    pub rip: Member,
    /// The vCPU's number. Kernels before 5.10 don't have it.
    pub vcpu: Member,
}

/// The tracepoint `kvm_exit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitTracepoint {
    /// The tracepoint itself.
    pub tracepoint: Tracepoint,
    /// The members of its record.
    pub members: ExitMembers,
}

/// The members of `kvm_page_fault` that programs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultMembers {
    /// The guest-physical address, with nested paging.
    pub address: Member,
    /// VT-x: the qualification of the exit; SVM: the error code.
    pub error: Member,
}

/// Where KVM handles a fault of guest memory, behind `kvm_exit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultTracepoints {
    /// `kvm_page_fault`.
    pub fault: Tracepoint,
    /// The members of its record.
    pub members: FaultMembers,
    /// `kvm_entry`.
    pub entry: Tracepoint,
    /// `kvm_try_async_get_page`: KVM has another thread wait for the page, while the vCPU halts; `None` if this host doesn't let kvmprof read it.
    pub other_waits: Option<Tracepoint>,
    /// Perf's number of events at functions of the host's kernel; `None` if it has none.
    pub functions: Option<u32>,
}

/// Perf's number of events at functions of the host's kernel (Linux `Documentation/ABI/testing/sysfs-bus-event_source-devices`).
const FUNCTIONS: &str = "/sys/bus/event_source/devices/kprobe/type";

impl FaultTracepoints {
    /// Reads what tracefs has of them.
    ///
    /// # Errors
    /// As for [`Tracepoint::read`]; or a record lacks a member.
    pub fn read() -> Result<Self, TracepointError> {
        let fault = Tracepoint::read("kvm_page_fault")?;
        let members = FaultMembers {
            address: fault.member("fault_address")?,
            error: fault.member("error_code")?,
        };
        Ok(Self {
            fault,
            members,
            entry: Tracepoint::read("kvm_entry")?,
            other_waits: Tracepoint::read("kvm_try_async_get_page").ok(),
            functions: fs::read_to_string(FUNCTIONS)
                .ok()
                .and_then(|number| number.trim().parse().ok()),
        })
    }
}

impl ExitTracepoint {
    /// Reads what tracefs has of it.
    ///
    /// # Errors
    /// As for [`Tracepoint::read`]; or its record lacks a member.
    pub fn read() -> Result<Self, TracepointError> {
        let tracepoint = Tracepoint::read("kvm_exit")?;
        let member = |name| tracepoint.member(name);
        let members = ExitMembers {
            reason: member("exit_reason")?,
            isa: member("isa")?,
            rip: member("guest_rip")?,
            vcpu: member("vcpu_id")?,
        };
        Ok(Self {
            tracepoint,
            members,
        })
    }
}

impl Tracepoint {
    /// Reads what tracefs has of KVM's tracepoint `name`.
    ///
    /// # Errors
    /// There is no such tracepoint, or this process may not read its description.
    pub fn read(name: &'static str) -> Result<Self, TracepointError> {
        Self::read_of("kvm", name)
    }

    /// The same of the tracepoint `name` of another `group` of the host's kernel; `None` if this host doesn't let kvmprof read it.
    pub fn of_host(group: &'static str, name: &'static str) -> Option<Self> {
        Self::read_of(group, name).ok()
    }

    fn read_of(group: &str, name: &'static str) -> Result<Self, TracepointError> {
        let mut failure = None;
        for folder in TRACEFS {
            let events = Path::new(folder).join("events");
            let tracepoint = events.join(group).join(name);
            let read = |file| fs::read_to_string(tracepoint.join(file));
            match read("id").and_then(|id| Ok((id, read("format")?))) {
                Ok((id, format)) => {
                    let id = id.trim().parse();
                    let id = id.map_err(|_| TracepointError::NoNumber { folder, name })?;
                    return Ok(Self { name, id, format });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if events.exists() {
                        failure = Some(TracepointError::Missing(name));
                    }
                }
                Err(error) => {
                    failure.get_or_insert(TracepointError::Refused { folder, error });
                }
            }
        }
        Err(failure.unwrap_or(TracepointError::NotMounted))
    }

    /// A number in its record, which programs read.
    ///
    /// # Errors
    /// The record doesn't have it.
    pub fn member(&self, member: &'static str) -> Result<Member, TracepointError> {
        let name = self.name;
        let missing = TracepointError::NoMember { name, member };
        self.find(member).ok_or(missing)
    }

    /// The lines of members are such as `field:unsigned long guest_rip; offset:16; size:8; signed:0;`.
    fn find(&self, member: &str) -> Option<Member> {
        let mut lines = self.format.lines();
        let words = lines.find_map(|line| {
            let (declaration, rest) = line.trim().strip_prefix("field:")?.split_once(';')?;
            let named = declaration.rsplit([' ', '*']).next()? == member;
            named.then_some(rest)
        })?;
        let number = |key| -> Option<u8> {
            let mut words = words.split(';');
            let value = words.find_map(|word| word.trim().strip_prefix(key));
            value?.parse().ok()
        };
        let (offset, bytes) = (number("offset:")?, number("size:")?);
        // The first 8 bytes aren't for programs, and all others are read whole.
        let is_readable = [1, 2, 4, 8].contains(&bytes) && offset >= 8 && offset % bytes == 0;
        is_readable.then_some(Member {
            offset: offset.into(),
            bytes,
        })
    }

    /// The names that the description has for numbers of a member: those of the list that begins behind `start`. It's empty if there is no such list.
    pub fn names(&self, start: &str) -> BTreeMap<u32, String> {
        let list = self.format.split_once(start).map(|(_, list)| list);
        let mut rest = list.unwrap_or_default();
        let mut names = BTreeMap::new();
        // { 0x040 + 1, "DB excp" }, { -1, "invalid_guest_state" })
        while let Some(entry) = rest.trim_start_matches([' ', ',']).strip_prefix('{') {
            let Some((entry, behind)) = entry.split_once('}') else {
                break;
            };
            rest = behind;
            let Some((number, name)) = entry.split_once(',') else {
                break;
            };
            if let Some(number) = sum(number) {
                names.insert(number, name.trim().trim_matches('"').to_owned());
            }
        }
        names
    }
}

/// The value of a sum of numbers, modulo 2^32.
fn sum(text: &str) -> Option<u32> {
    let mut total = 0_u32;
    for word in text.split('+').map(str::trim) {
        let number = match (word.strip_prefix("0x"), word.strip_prefix('-')) {
            (Some(digits), _) => u32::from_str_radix(digits, 16).ok()?,
            (None, Some(digits)) => digits.parse::<u32>().ok()?.wrapping_neg(),
            (None, None) => word.parse().ok()?,
        };
        total = total.wrapping_add(number);
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: kvm_exit\nID: 103\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned long guest_rip;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:u32 odd;\toffset:26;\tsize:4;\tsigned:0;\n\
        \tfield:char text[16];\toffset:32;\tsize:16;\tsigned:0;\n\
        \nprint fmt: \"%s\", (REC->isa == 1) ? list(REC->reason & 0xffff, { 0, \"EXCEPTION_NMI\" }, { 12, \"HLT\" }) : \
        list(REC->reason, { 0x040 + 14, \"PF excp\" }, { 0x400, \"npf\" }, { x, \"y\" }, { -1, \"invalid\" }), 7";

    fn tracepoint() -> Tracepoint {
        Tracepoint {
            name: "kvm_exit",
            id: 103,
            format: FORMAT.to_owned(),
        }
    }

    #[test]
    fn members_are_those_that_programs_can_read() {
        let member = |name| tracepoint().member(name).ok();
        let known = |offset, bytes| Some(Member { offset, bytes });
        assert_eq!(member("exit_reason"), known(8, 4));
        assert_eq!(member("guest_rip"), known(16, 8));
        for name in ["common_type", "odd", "text[16]", "text", "rip", "int"] {
            assert_eq!(member(name), None, "{name}");
        }
    }

    #[test]
    fn names_are_those_of_the_list() {
        let names = tracepoint().names("list(REC->reason & 0xffff,");
        assert_eq!(names.len(), 2);
        assert_eq!(names[&12], "HLT");
        let names = tracepoint().names("list(REC->reason,");
        let expected = [(0x4e, "PF excp"), (0x400, "npf"), (u32::MAX, "invalid")];
        assert_eq!(
            names,
            expected
                .map(|(number, name)| (number, name.to_owned()))
                .into()
        );
        assert!(tracepoint().names("other(").is_empty());
    }

    #[test]
    fn a_missing_tracepoint_has_a_reason() {
        let error = Tracepoint::read("no_such_tracepoint").unwrap_err();
        assert!(
            matches!(
                error,
                TracepointError::Missing(_)
                    | TracepointError::NotMounted
                    | TracepointError::Refused { .. }
            ),
            "{error}"
        );
    }
}
