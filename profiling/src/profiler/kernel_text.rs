//! The guest kernel's symbols in the form that clients read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use kvmprof_abi::kallsyms::KernelSymbol;
use kvmprof_introspection::{GuestKnowledge, LinuxKnowledge};
use kvmprof_recording::file::{GoneCode, SymbolChange, SymbolText};

/// Maximum number of bytes of modules' functions that are kept for the next recording.
const MAX_KEPT: usize = 32 << 20;

/// The texts, which have some MB. The text of the kernel itself changes only at a restart, but its modules come and go.
#[derive(Debug, Default)]
pub struct KernelText {
    /// The kernel's functions.
    kernel: Option<Arc<[u8]>>,
    /// The same for recordings, with the time since when they hold, and where those of the last kernel were.
    recorded: Option<SymbolText>,
    /// The time of the last restart, in ns.
    since: Option<u64>,
    /// The addresses of a kernel that was known, and when it ended.
    gone: Option<(Range<u64>, u64)>,
    whole: Option<WholeText>,
    /// Functions of modules in the form of recordings, and the number of bytes that are known with them, by the number of bytes that were
    /// known before.
    modules: BTreeMap<u64, (SymbolText, u64)>,
    kept: usize,
}

#[derive(Debug)]
struct WholeText {
    /// The generation of the modules in the text.
    generation: u64,
    text: Arc<[u8]>,
}

impl KernelText {
    /// The functions of the kernel's own image, once the kernel is located.
    pub fn kernel(&mut self, knowledge: &GuestKnowledge) -> Option<Arc<[u8]>> {
        if self.kernel.is_none() {
            self.kernel = Some(knowledge.kallsyms()?.into_bytes().into());
        }
        self.kernel.clone()
    }

    /// Forgets the texts of the kernel that has ended at `time`, in ns. Addresses mean something else from then on, also if the next kernel has the same ones.
    pub fn restart(&mut self, time: u64) {
        let former = self.kernel.as_deref().and_then(addresses);
        *self = Self {
            since: Some(time),
            gone: former.map(|former| (former, time)).or(self.gone.take()),
            ..Self::default()
        };
    }

    /// The same functions for recordings.
    pub fn kernel_symbols(&mut self, knowledge: &GuestKnowledge) -> Option<SymbolText> {
        if self.recorded.is_none() {
            let kernel = self.kernel(knowledge)?;
            let Some(since) = self.since else {
                self.recorded = Some(SymbolText::new(kernel));
                return self.recorded.clone();
            };
            let mut text = String::new();
            if let Some((former, end)) = &self.gone {
                text += &SymbolChange::at(*end).to_string();
                text += &GoneCode(former.clone()).to_string();
            }
            text += &SymbolChange::at(since).to_string();
            text += std::str::from_utf8(&kernel).ok()?;
            self.recorded = Some(text.into());
        }
        self.recorded.clone()
    }

    /// Functions of modules after the first `known` bytes of them, and the number of bytes that are known with them. Recordings share the
    /// texts, which are packed once.
    pub fn modules_after(
        &mut self,
        knowledge: &GuestKnowledge,
        known: u64,
    ) -> Option<(SymbolText, u64)> {
        if let Some((text, known)) = self.modules.get(&known) {
            return Some((text.clone(), *known));
        }
        let new = knowledge.linux()?.modules().functions_after(known)?;
        let text = SymbolText::from(new.text);
        self.kept += text.text().len();
        self.modules.insert(known, (text.clone(), new.known));
        while self.kept > MAX_KEPT
            && let Some((_, (oldest, _))) = self.modules.pop_first()
        {
            self.kept -= oldest.text().len();
        }
        Some((text, new.known))
    }

    /// The functions of the kernel's image and of the modules that are known, by address: modules are above the kernel.
    pub fn whole(&mut self, knowledge: &GuestKnowledge) -> Option<Arc<[u8]>> {
        let kernel = self.kernel(knowledge)?;
        let Some(modules) = knowledge.linux().map(LinuxKnowledge::modules) else {
            return Some(kernel);
        };
        let generation = modules.generation();
        if let Some(whole) = &self.whole
            && whole.generation == generation
        {
            return Some(Arc::clone(&whole.text));
        }
        let functions = modules.loaded().functions();
        let text: Arc<[u8]> = [&*kernel, functions.as_bytes()].concat().into();
        self.whole = Some(WholeText {
            generation,
            text: Arc::clone(&text),
        });
        Some(text)
    }
}

/// The addresses from the first line of a text to the last one.
fn addresses(text: &[u8]) -> Option<Range<u64>> {
    let address = |line: &[u8]| KernelSymbol::parse(line).map(|symbol| symbol.address);
    let mut lines = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let first = address(lines.next()?)?;
    let last = address(lines.next_back()?)?;
    (first < last).then_some(first..last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_introspection_fixtures::kernel::HOT;
    use kvmprof_introspection_fixtures::linux_guest::LinuxGuest;
    use kvmprof_introspection_fixtures::modules::TestModule;

    /// A guest whose kernel is located.
    fn located() -> (LinuxGuest, GuestKnowledge) {
        let guest = LinuxGuest::new(HOT);
        let knowledge = GuestKnowledge::from_kernel_image(&HOT.file()).unwrap();
        let linux = knowledge.linux().unwrap();
        linux.locate(&guest.memory, &guest.user());
        (guest, knowledge)
    }

    /// The guest has these modules from now on, by name and number of functions.
    fn load(guest: &LinuxGuest, knowledge: &GuestKnowledge, modules: &[(&str, u64)]) {
        let modules = modules
            .iter()
            .map(|(name, count)| TestModule::new(name, *count));
        guest.load(&modules.collect::<Vec<_>>());
        let linux = knowledge.linux().unwrap();
        linux.modules().read(linux, &guest.memory);
    }

    #[test]
    fn the_text_has_the_current_modules() {
        let (guest, knowledge) = &located();
        let mut texts = KernelText::default();
        let not_located = GuestKnowledge::from_kernel_image(&HOT.file()).unwrap();
        assert_eq!(texts.whole(&not_located), None);
        let kernel = texts.kernel(knowledge).unwrap();
        assert_eq!(texts.whole(knowledge).as_deref(), Some(&*kernel));
        load(guest, knowledge, &[("first", 2), ("second", 1)]);
        let whole = texts.whole(knowledge).unwrap();
        let text = std::str::from_utf8(&whole).unwrap();
        assert!(whole.starts_with(&kernel));
        let end = "_1\t[first]\nffffffffc0402000 ? [end]\t[first]\n\
                   ffffffffc0420000 t second_0\t[second]\nffffffffc0422000 ? [end]\t[second]\n";
        assert!(text.ends_with(end), "{text}");
        assert!(text.lines().is_sorted_by_key(|line| &line[..16]));
        // It isn't made again while nothing changes.
        assert!(Arc::ptr_eq(&whole, &texts.whole(knowledge).unwrap()));
        load(guest, knowledge, &[("first", 2)]);
        let whole = texts.whole(knowledge).unwrap();
        assert!(whole.ends_with(b"_1\t[first]\nffffffffc0402000 ? [end]\t[first]\n"));
        assert!(Arc::ptr_eq(&kernel, &texts.kernel(knowledge).unwrap()));
    }

    /// A kernel without KASLR is followed by another one at the same addresses.
    #[test]
    fn functions_hold_since_the_kernels_start() {
        let (_guest, knowledge) = &located();
        let mut texts = KernelText::default();
        let kernel = texts.kernel(knowledge).unwrap();
        let first = texts.kernel_symbols(knowledge).unwrap();
        assert_eq!(**first.text(), *kernel);
        let line = |line: &[u8]| String::from_utf8_lossy(&line[..16]).into_owned();
        let lines: Vec<&[u8]> = kernel.split(|byte| *byte == b'\n').collect();
        let (begin, end) = (line(lines[0]), line(lines[lines.len() - 2]));
        let gone = format!("since 70 70\ngone {begin} {end}\n");
        texts.restart(70);
        let recorded = |texts: &mut KernelText| {
            let symbols = texts.kernel_symbols(knowledge).unwrap();
            String::from_utf8(symbols.text().to_vec()).unwrap()
        };
        let own = String::from_utf8(kernel.to_vec()).unwrap();
        assert_eq!(recorded(&mut texts), format!("{gone}since 70 70\n{own}"));
        // Clients get the functions of the present alone.
        assert_eq!(texts.kernel(knowledge).as_deref(), Some(&*kernel));
        texts.restart(80);
        // A kernel that was never found.
        texts.restart(90);
        let gone = gone.replace("70", "80");
        assert_eq!(recorded(&mut texts), format!("{gone}since 90 90\n{own}"));
    }

    #[test]
    fn recordings_have_the_same_texts_of_modules() {
        let (guest, knowledge) = &located();
        let mut texts = KernelText::default();
        load(guest, knowledge, &[("first", 2)]);
        let (first, known) = texts.modules_after(knowledge, 0).unwrap();
        assert!(texts.modules_after(knowledge, known).is_none());
        load(guest, knowledge, &[("first", 2), ("second", 1)]);
        // Every later caller gets the second text.
        for _ in 0..2 {
            let (same, same_known) = texts.modules_after(knowledge, 0).unwrap();
            assert!(Arc::ptr_eq(same.text(), first.text()) && same_known == known);
            let (second, end) = texts.modules_after(knowledge, known).unwrap();
            let last = b"second_0\t[second]\nffffffffc0422000 ? [end]\t[second]\n\n";
            assert!(second.text().ends_with(last));
            assert!(texts.modules_after(knowledge, end).is_none());
        }
    }

    #[test]
    fn a_guest_without_modules_has_its_own_functions() {
        let knowledge = GuestKnowledge::from_image(kvmprof_demo_guest::ELF).unwrap();
        let mut texts = KernelText::default();
        let kernel = texts.kernel(&knowledge).unwrap();
        assert!(Arc::ptr_eq(&kernel, &texts.whole(&knowledge).unwrap()));
    }
}
