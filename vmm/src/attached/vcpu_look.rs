//! A look at what a vCPU of another program runs.

use kvmprof_attach::remote::RemoteVcpu;
use kvmprof_attach::tracer::StopOutcome;
use kvmprof_introspection::Registers;
use kvmprof_profiling::sampling::{has_started, select_registers};

/// What a look at a vCPU gives.
#[derive(Clone, Debug)]
pub enum VcpuLook {
    Registers(Box<Registers>),
    /// The guest hasn't started it yet.
    NotStarted,
    /// It runs a nested guest, or can't be stopped now, as while the thread that samples it looks at it.
    Unknown,
}

impl VcpuLook {
    /// Looks at `vcpu`, whose thread stands still meanwhile.
    pub fn new(vcpu: &mut RemoteVcpu) -> Self {
        let looked = vcpu.look(|vcpu| {
            if vcpu.runs_nested_guest() {
                return Ok(Self::Unknown);
            }
            let has_started = has_started(vcpu.mp_state()?);
            let (regs, sregs) = vcpu.registers()?;
            Ok(match has_started {
                true => Self::Registers(Box::new(select_registers(&regs, &sregs))),
                false => Self::NotStarted,
            })
        });
        match looked {
            Ok(StopOutcome::Stopped(look)) => look,
            Ok(_) => Self::Unknown,
            Err(error) => {
                log::debug!("What the vCPU runs isn't looked at now: {error}");
                Self::Unknown
            }
        }
    }

    /// The registers, if it gives them.
    pub fn registers(self) -> Option<Registers> {
        match self {
            Self::Registers(registers) => Some(*registers),
            Self::NotStarted | Self::Unknown => None,
        }
    }
}
