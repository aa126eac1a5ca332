use super::*;
use crate::test_guest::LinuxGuest;
use kvmprof_introspection_fixtures::kernel::HOT;
use kvmprof_introspection_fixtures::linux_guest::IMAGE;
use kvmprof_introspection_fixtures::modules::TestModule;

#[test]
fn pending_knowledge_is_completed_once() {
    let knowledge = GuestKnowledge::pending();
    assert!(knowledge.is_pending() && !knowledge.tells_processes());
    let by_option = GuestKnowledge::from_pid_at("gs:8:4").unwrap();
    for without_image in [&knowledge, &GuestKnowledge::unknown(), &by_option] {
        assert_eq!(without_image.kallsyms(), None);
    }
    knowledge.complete(by_option);
    knowledge.complete(GuestKnowledge::unknown());
    let Guest::Other(other) = knowledge.guest() else {
        panic!("{knowledge:?}");
    };
    let note = &other.note;
    assert!(other.code.is_none());
    assert!(note.pid.is_some() && note.tid.is_none());
    assert!(knowledge.tells_processes() && knowledge.linux().is_none());
}

#[test]
fn a_restarted_guest_is_searched_again() {
    let guest = LinuxGuest::new(HOT);
    let (knowledge, linux) = (&guest.knowledge, guest.linux());
    linux.locate(&guest.memory, &guest.user());
    let slide = linux.slide();
    guest.load(&[TestModule::new("first", 2)]);
    guest.read_modules();
    let modules = || linux.modules().loaded().functions();
    assert!(slide.is_some() && !modules().is_empty());
    let before = linux.modules().generation();
    linux.forget_running();
    assert!(knowledge.is_unlocated() && knowledge.kallsyms().is_none());
    assert!(modules().is_empty());
    assert!(linux.modules().generation() > before);
    // Functions that were returned stay valid, because recordings continue.
    assert!(linux.modules().functions_after(0).is_some());
    linux.locate(&guest.memory, &guest.user());
    assert_eq!(linux.slide(), slide);
    guest.read_modules();
    assert!(!modules().is_empty());
}

/// What vCPUs have of the former kernel is no longer used, and recordings go on with the functions of modules.
#[test]
fn another_kernel_takes_the_place_of_one_that_has_ended() {
    let guest = LinuxGuest::new(HOT);
    let (knowledge, former) = (&guest.knowledge, guest.linux());
    former.locate(&guest.memory, &guest.user());
    guest.load(&[TestModule::new("first", 2)]);
    guest.read_modules();
    let log = former.modules().functions_after(0).unwrap();
    former.forget_running();
    let file = HOT.file();
    let mut words = file.windows(6);
    let place = words.position(|word| word == b"#1 SMP").unwrap();
    let mut other = file.clone();
    other[place..place + 6].copy_from_slice(b"#2 SMP");
    let found = || GuestKnowledge::from_kernel_image(&other).unwrap();
    let generation = former.modules().generation();
    assert!(!knowledge.succeed(GuestKnowledge::unknown()));
    assert!(knowledge.succeed(found()));
    let linux = knowledge.linux().unwrap();
    assert!(!std::ptr::eq(linux, former) && linux.slide().is_none());
    assert!(linux.modules().generation() > generation);
    // The banner in memory is the former one.
    assert!(linux.locate(&guest.memory, &guest.user()).is_none());
    guest.write(IMAGE + place as u64 - 4096, b"#2 SMP");
    linux.locate(&guest.memory, &guest.user()).unwrap();
    assert_eq!(former.locate(&guest.memory, &guest.user()), None);
    linux.modules().read(linux, &guest.memory);
    let more = linux.modules().functions_after(log.known).unwrap();
    assert!(more.text.contains("first_0") && more.known > log.known);
    for _ in 2..MAX_KERNELS {
        assert!(knowledge.succeed(found()));
    }
    assert!(!knowledge.succeed(found()));
    assert!(!GuestKnowledge::pending().succeed(found()));
}

#[test]
fn the_button_driver_is_known_by_its_module() {
    let guest = LinuxGuest::new(HOT);
    let hears = || guest.linux().hears_power_button(&guest.memory);
    guest.load(&[TestModule::new("first", 2), TestModule::new("button", 1)]);
    assert!(!hears(), "it isn't known where the list is");
    guest.linux().locate(&guest.memory, &guest.user());
    assert!(hears());
    guest.load(&[TestModule::new("buttons", 1)]);
    assert!(!hears());
}

#[test]
fn refuses_files_that_are_no_kernel() {
    let error = GuestKnowledge::from_kernel_image(b"#!/bin/sh\n").unwrap_err();
    assert!(matches!(error, IntrospectionError::NotAKernel));
}

#[test]
fn a_bzimage_without_a_packed_kernel_is_unknown() {
    let mut image = vec![0; 4096];
    image[0x202..0x208].copy_from_slice(b"HdrS\x0c\x02");
    let knowledge = GuestKnowledge::from_image(&image).unwrap();
    assert!(!knowledge.is_pending() && !knowledge.tells_processes());
    assert!(knowledge.linux().is_none() && knowledge.kallsyms().is_none());
    image[0x24c] = 1;
    assert!(GuestKnowledge::from_image(&image).is_err());
}

#[test]
fn a_guest_with_a_note_has_the_symbols_of_its_image() {
    let knowledge = GuestKnowledge::from_image(kvmprof_demo_guest::ELF).unwrap();
    let text = knowledge.kallsyms().unwrap();
    let compute = kvmprof_demo_guest::symbol("compute").unwrap().address;
    let line = format!("{compute:016x} t compute\n");
    assert!(text.contains(&line), "{text}");
    // Data is none of the functions.
    assert!(!text.contains("kvmprof_truth"));
}

#[test]
fn only_an_image_with_a_note_is_identified_by_it() {
    let noted = GuestKnowledge::from_noted_image(kvmprof_demo_guest::ELF).unwrap();
    assert!(!noted.unwrap().is_pending());
    for other in [b"".as_slice(), b"\x7fELF", b"HdrS"] {
        assert!(GuestKnowledge::from_noted_image(other).unwrap().is_none());
    }
}

/// At a start it is moved several times, with what has it.
#[test]
fn knowledge_is_moved_in_no_time() {
    assert!(size_of::<GuestKnowledge>() <= 1024);
}
