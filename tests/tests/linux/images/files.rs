//! Files that a kernel's build leaves behind beside its image: they stand for what the image lacks, and those of another kernel are refused.

use std::fmt::Write;
use std::fs;

use kvmprof_introspection::parts::{FileSymbol, KernelImage, SymbolKind, Vmlinux};
use kvmprof_introspection::{BuildFiles, GuestKnowledge, IntrospectionError};
use kvmprof_lab::Kernel;
use kvmprof_tests::linux::{
    debian, kernel_knowledge, patched, undescribed, unexpected_gaps, unpacked,
};
use kvmprof_tests::not_run;

use super::kernels;
use super::running::layouts;

/// The kernel's BTF, as `/sys/kernel/btf/vmlinux` has it.
fn btf(kernel: &Kernel) -> Vec<u8> {
    let elf = unpacked(kernel);
    let file = Vmlinux::parse(&elf).unwrap();
    file.section(b".BTF").unwrap().1.to_vec()
}

fn with(image: &[u8], files: &BuildFiles) -> Result<GuestKnowledge, IntrospectionError> {
    GuestKnowledge::from_kernel_image_with(image, files)
}

fn refusal(image: &[u8], files: &BuildFiles) -> String {
    let said = with(image, files).unwrap_err();
    assert!(said.is_of_other_kernel());
    println!("{said}");
    said.to_string()
}

/// What follows the kernel's processes in the knowledge of it: all that types tell and symbols don't.
fn by_types(knowledge: &GuestKnowledge) -> String {
    let text = format!("{:?}", knowledge.linux().unwrap());
    let start = text.find(", processes: ").unwrap();
    let end = text.find(", map_budget: ").unwrap();
    text[start..end].to_owned()
}

#[test]
fn types_are_those_of_the_same_build() {
    let types = kernels().map(|kernel| btf(&kernel));
    for (index, kernel) in kernels().iter().enumerate() {
        let image = undescribed(kernel);
        let mut files = BuildFiles::default();
        files.add_types("vmlinux.btf", &types[index]).unwrap();
        let found = with(&image, &files).unwrap();
        let gaps = found.linux().unwrap().gaps();
        assert!(gaps.is_empty(), "{}: {gaps:#?}", kernel.version);
        assert_eq!(by_types(&found), by_types(&kernel_knowledge(kernel)));
        let mut files = BuildFiles::default();
        files.add_types("vmlinux.btf", &types[1 - index]).unwrap();
        let said = refusal(&image, &files);
        assert!(
            said.starts_with("vmlinux.btf has the types of another kernel: of ")
                && said.contains(" offsets in structures, "),
            "{said}"
        );
        // A kernel that has types of its own is compared, too.
        assert_eq!(refusal(&unpacked(kernel), &files), said);
    }
}

/// The kernel's file with its debug symbols; `None`, with a note, if it can't be had.
fn debug_file(kernel: &Kernel) -> Option<Vec<u8>> {
    match kvmprof_lab::debug_symbols(kernel) {
        Ok(path) => Some(fs::read(path).unwrap()),
        Err(error) => {
            not_run(&format!("the kernel's debug symbols can't be had: {error}"));
            None
        }
    }
}

/// Lines as of `System.map`.
fn lines<'a>(symbols: impl Iterator<Item = FileSymbol<'a>>) -> String {
    let mut text = String::new();
    for symbol in symbols {
        let kind = match symbol.kind {
            SymbolKind::Function => 'T',
            SymbolKind::Variable => 'D',
            SymbolKind::Number => 'A',
        };
        let name = String::from_utf8_lossy(symbol.name);
        let _ = writeln!(text, "{:016x} {kind} {name}", symbol.address);
    }
    text
}

#[test]
fn symbols_are_those_of_the_same_build() {
    let kernel = debian("6.1");
    let Some(debug) = debug_file(&kernel) else {
        return;
    };
    let file = Vmlinux::parse(&debug).unwrap();
    let map = lines(file.symbols());
    let table = file
        .symbols()
        .find(|one| one.name == b"kallsyms_token_table");
    let unnamed = patched(&unpacked(&kernel), table.unwrap().address, &[0; 2048]).unwrap();
    let without = GuestKnowledge::from_kernel_image(&unnamed).unwrap();
    let names = without.linux().unwrap().symbols().functions().count();
    assert_eq!(names, 0);
    for contents in [map.as_bytes(), &debug] {
        for image in [&unnamed, &unpacked(&kernel)] {
            let mut files = BuildFiles::default();
            files.add_symbols("System.map", contents).unwrap();
            let found = with(image, &files).unwrap();
            let linux = found.linux().unwrap();
            assert!(linux.gaps().is_empty(), "{:#?}", linux.gaps());
            assert!(linux.orc().is_some() && linux.modules().can_be_found());
            let entry = linux.symbols().address_of("do_syscall_64").unwrap();
            let expected = kernel_knowledge(&kernel);
            let symbols = expected.linux().unwrap().symbols();
            assert_eq!(symbols.address_of("do_syscall_64"), Some(entry));
        }
    }
    let other = kernel_knowledge(&debian("6.12"));
    let other = other.linux().unwrap().symbols();
    let mut map = String::new();
    for (address, kind, name) in other.functions() {
        let _ = writeln!(map, "{address:016x} {kind} {name}");
    }
    let mut files = BuildFiles::default();
    files.add_symbols("System.map", map.as_bytes()).unwrap();
    let said = refusal(&unnamed, &files);
    assert!(
        said.contains(" functions that the kernel's code calls, "),
        "{said}"
    );
    let said = refusal(&unpacked(&kernel), &files);
    assert!(said.contains("kernel's own symbol table has, "), "{said}");
}

/// `make vmlinux` with CONFIG_DEBUG_INFO and without CONFIG_DEBUG_INFO_BTF.
#[test]
fn debug_information_gives_the_facts_of_btf() {
    let kernel = debian("6.1");
    let expected = kernel_knowledge(&kernel);
    let Some(mut debug) = debug_file(&kernel) else {
        return;
    };
    let (start, length) = {
        let image = KernelImage::from_file(Vmlinux::parse(&debug).unwrap());
        let (_, section) = image.file().unwrap().section(b".BTF").unwrap();
        let start = section.as_ptr().addr() - debug.as_ptr().addr();
        (start, section.len())
    };
    debug[start..start + length].fill(0);
    let begun = std::time::Instant::now();
    let found = GuestKnowledge::from_kernel_image(&debug).unwrap();
    println!("read in {:?}", begun.elapsed());
    let (found, expected) = (found.linux().unwrap(), expected.linux().unwrap());
    assert!(found.gaps().is_empty(), "{:#?}", found.gaps());
    assert_eq!(layouts(found), layouts(expected));
    // With symbols only.
    let name = b".debug_info\0";
    let place = memchr::memmem::rfind(&debug, name).unwrap();
    debug[place + 1] = b'_';
    let found = GuestKnowledge::from_kernel_image(&debug).unwrap();
    let found = found.linux().unwrap();
    assert!(
        unexpected_gaps(found.gaps()).is_empty(),
        "{:#?}",
        found.gaps()
    );
    assert_eq!(found.symbols().len(), expected.symbols().len());
}
