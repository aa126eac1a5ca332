//! The guest kernel's symbols as a client reads them.

use std::rc::Rc;

use kvmprof_abi::errno::Errno;

use super::Profiler;

impl Profiler {
    /// The text of the device. It is made once, since it stays the same and is some MB long.
    pub(super) fn kallsyms(&mut self) -> Result<Rc<[u8]>, Errno> {
        if let Some(text) = &self.kallsyms {
            return Ok(Rc::clone(text));
        }
        if self.facts.knowledge.is_unlocated() && !self.ended {
            // Each vCPU looks where the kernel is when it answers.
            self.request_of_all();
        }
        let text = self.facts.knowledge.kallsyms().ok_or(Errno::ENXIO)?;
        let text: Rc<[u8]> = text.into_bytes().into();
        self.kallsyms = Some(Rc::clone(&text));
        Ok(text)
    }
}
