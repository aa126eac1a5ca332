//! The guest kernel's symbols as a client reads them.

use std::sync::Arc;

use kvmprof_introspection::GuestKnowledge;

/// The texts, which are some MB long. The kernel's own stays the same; its modules come and go.
#[derive(Debug, Default)]
pub struct KernelText {
    kernel: Option<Arc<[u8]>>,
    whole: Option<WholeText>,
}

#[derive(Debug)]
struct WholeText {
    /// Which modules are in it.
    generation: u64,
    text: Arc<[u8]>,
}

impl KernelText {
    /// The functions of the kernel's own image, once it is known where they are.
    pub fn kernel(&mut self, knowledge: &GuestKnowledge) -> Option<Arc<[u8]>> {
        if self.kernel.is_none() {
            let text = knowledge.kallsyms()?;
            self.kernel = Some(text.into_bytes().into());
        }
        self.kernel.clone()
    }

    /// The same with the functions of the modules that are known, by address: modules lie above the kernel.
    pub fn whole(&mut self, knowledge: &GuestKnowledge) -> Option<Arc<[u8]>> {
        let kernel = self.kernel(knowledge)?;
        let Some(modules) = knowledge.modules() else {
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

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_introspection::testing::kernel::HOT;
    use kvmprof_introspection::testing::linux_guest::LinuxGuest;
    use kvmprof_introspection::testing::modules::TestModule;

    #[test]
    fn modules_are_those_that_are_known_now() {
        let guest = LinuxGuest::new(HOT);
        let knowledge = &guest.knowledge;
        let mut texts = KernelText::default();
        assert_eq!(texts.whole(knowledge), None);
        knowledge.locate(&guest.memory, &guest.user());
        let kernel = texts.kernel(knowledge).unwrap();
        assert_eq!(texts.whole(knowledge).as_deref(), Some(&*kernel));
        guest.load(&[TestModule::new("first", 2), TestModule::new("second", 1)]);
        guest.read_modules();
        let whole = texts.whole(knowledge).unwrap();
        let text = std::str::from_utf8(&whole).unwrap();
        assert!(whole.starts_with(&kernel));
        assert!(text.ends_with("_1\t[first]\nffffffffc0420000 t second_0\t[second]\n"));
        assert!(text.lines().is_sorted_by_key(|line| &line[..16]));
        // It isn't made again while nothing changes.
        assert!(Arc::ptr_eq(&whole, &texts.whole(knowledge).unwrap()));
        guest.load(&[TestModule::new("first", 2)]);
        guest.read_modules();
        let whole = texts.whole(knowledge).unwrap();
        assert!(whole.ends_with(b"_1\t[first]\n"));
        assert!(Arc::ptr_eq(&kernel, &texts.kernel(knowledge).unwrap()));
    }

    #[test]
    fn a_guest_without_modules_has_its_own_functions() {
        let knowledge = GuestKnowledge::from_image(kvmprof_demo_guest::ELF).unwrap();
        let mut texts = KernelText::default();
        let kernel = texts.kernel(&knowledge).unwrap();
        assert!(Arc::ptr_eq(&kernel, &texts.whole(&knowledge).unwrap()));
    }
}
