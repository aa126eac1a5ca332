//! Source lines and inlined functions for the Firefox Profiler: in exports, and by the symbol server.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shared::compiled::{Guest, SOURCE};
use crate::shared::read::source_with;
use kvmprof_recording::Sysroot;
use kvmprof_report::export::{Format, Source, write_on_demand};
use kvmprof_report::profile::Profile;
use kvmprof_report::symbol_server::{Request, SymbolServer};
use kvmprof_report::symbolize::{SourceTexts, Sources};
use serde_json::{Value, json};

/// The profiler's id of the program: its build id in another byte order.
const DEBUG_ID: &str = "DEC0AD0B0000000000000000000000000";

/// A guest, and a recording of a stack with an inlined function and of an address without a name.
fn recorded() -> (Guest, PathBuf) {
    let guest = Guest::new();
    let (path, _) = guest.named_recording();
    (guest, path)
}

fn source(guest: &Guest, path: &Path, sysroot: bool) -> Source {
    let sources = Sources {
        sysroot: sysroot.then(|| guest.root()),
        ..Sources::default()
    };
    source_with(path, &sources)
}

/// The frames of the only thread's first stack, innermost first: function, file, line, depth, library.
fn frames(document: &Value) -> Vec<(String, String, u64, u64, String)> {
    let thread = &document["threads"][0];
    let text = |number: &Value| {
        let number = number
            .as_u64()
            .map(|number| usize::try_from(number).unwrap());
        let text = number.map_or("", |number| thread["stringArray"][number].as_str().unwrap());
        text.rsplit('/').next().unwrap().to_owned()
    };
    let row = |table: &str, column: &str, row: &Value| {
        let row = usize::try_from(row.as_i64().unwrap()).unwrap();
        thread[table][column][row].clone()
    };
    let mut stack = thread["samples"]["stack"][0].clone();
    let mut frames = Vec::new();
    while !stack.is_null() {
        let frame = row("stackTable", "frame", &stack);
        let function = row("frameTable", "func", &frame);
        let resource = row("funcTable", "resource", &function);
        let library = match resource.as_i64() {
            Some(-1) => String::new(),
            _ => text(&row("resourceTable", "name", &resource)),
        };
        frames.push((
            text(&row("funcTable", "name", &function)),
            text(&row("funcTable", "fileName", &function)),
            row("frameTable", "line", &frame).as_u64().unwrap_or(0),
            row("frameTable", "inlineDepth", &frame).as_u64().unwrap(),
            library,
        ));
        stack = row("stackTable", "prefix", &stack);
    }
    frames
}

fn answer(server: &SymbolServer, profile: &Profile, request: Request, body: &str) -> Value {
    let answer = server.answer(profile, request, body.as_bytes());
    serde_json::from_slice(&answer).unwrap()
}

/// Asserts that the answer is an error with these words.
fn assert_refused(answer: &Value, words: &str) {
    let error = answer["error"].as_str();
    assert!(error.is_some_and(|error| error.contains(words)), "{answer}");
}

#[test]
fn an_export_has_lines_and_inlined_functions() {
    let (guest, path) = recorded();
    let export = |sysroot| {
        let mut json = Vec::new();
        let source = source(&guest, &path, sysroot);
        Format::Firefox.write(&source, &mut json).unwrap();
        serde_json::from_slice::<Value>(&json).unwrap()
    };
    let frame = |name: &str, file: &str, line, depth| {
        let [name, file, library] = [name, file, "work"].map(str::to_owned);
        (name, file, line, depth, library)
    };
    let with = export(true);
    let inner = frame("inner", "work.c", 2, 1);
    let outer = frame("outer", "work.c", 5, 0);
    assert_eq!(frames(&with), [inner, outer, frame("main", "work.c", 8, 0)]);
    assert_eq!(with["libs"][0]["breakpadId"], DEBUG_ID);
    assert_eq!(with["libs"][0]["codeId"], "0badc0de");
    assert_eq!(with["libs"][0]["path"], "/usr/bin/work");
    let without = export(false);
    let outer = frame("outer", "", 0, 0);
    assert_eq!(frames(&without), [outer, frame("main", "", 0, 0)]);
    // Each has a library, even the address without a function.
    let functions = &without["threads"][0]["funcTable"];
    assert_eq!(functions["length"], 3);
    assert_eq!(functions["resource"], json!([0, 0, 0]));
}

#[test]
fn a_symbol_server_adds_what_the_profile_omits() {
    let (guest, path) = recorded();
    let source = source(&guest, &path, true);
    let mut json = Vec::new();
    write_on_demand(&source, &mut json).unwrap();
    let document: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(document["meta"]["symbolicated"], false);
    let frames = frames(&document);
    assert!(
        frames
            .iter()
            .all(|(_, file, _, depth, _)| file.is_empty() && *depth == 0)
    );

    let profile = source.profile();
    let server = SymbolServer::new(profile, SourceTexts::default());
    let outer = guest.address("outer");
    let main = guest.address("main");
    let ask = |body: Value| answer(&server, profile, Request::Symbolicate, &body.to_string());
    // Also an address that was never sampled, and one outside of all mappings.
    let offsets = [outer + 8, main, outer, 0x7fff_ffff];
    let stack: Vec<[u64; 2]> = offsets.iter().map(|offset| [0, *offset]).collect();
    let job = json!({ "memoryMap": [["work", DEBUG_ID]], "stacks": [stack] });
    let answer = ask(json!({ "jobs": [job] }));
    let result = &answer["results"][0];
    let known = format!("work/{DEBUG_ID}");
    assert_eq!(result["found_modules"], json!({ known: true }));
    let [inlined, in_main, begin, nowhere] = result["stacks"][0].as_array().unwrap().as_slice()
    else {
        panic!("{answer}");
    };
    let file = guest.folder.path().join("work.c");
    let expected = json!({
        "frame": 0, "module": "work", "module_offset": format!("{:#x}", outer + 8),
        "function": "outer", "function_offset": "0x8",
        "file": file, "line": 5,
        "inlines": [{ "function": "inner", "file": file, "line": 2 }],
    });
    assert_eq!(*inlined, expected);
    assert_eq!(in_main["function"], "main");
    assert_eq!(begin["function"], "outer");
    assert_eq!(nowhere.get("function"), None);
    // The form with one job, an unknown library, and one without addresses.
    let other = json!([["work", "0".repeat(33)], ["work", DEBUG_ID], ["none", "1"]]);
    let answer = ask(
        json!({ "memoryMap": other, "stacks": [[[0, 1], [1, main], [9, 1], [-1, -1]]], "version": 5 }),
    );
    let result = &answer["results"][0];
    let mut modules = serde_json::Map::new();
    modules.insert(format!("work/{}", "0".repeat(33)), json!(false));
    modules.insert(format!("work/{DEBUG_ID}"), json!(true));
    modules.insert("none/1".to_owned(), Value::Null);
    assert_eq!(result["found_modules"], Value::Object(modules));
    assert_eq!(result["stacks"][0][0].get("function"), None);
    assert_eq!(result["stacks"][0][1]["function"], "main");
}

#[test]
fn requests_that_are_wrong_or_too_much_are_answered_by_an_error() {
    let (guest, path) = recorded();
    let source = source(&guest, &path, true);
    let profile = source.profile();
    let server = SymbolServer::new(profile, SourceTexts::default());
    let many = vec![[0, 0]; (1 << 18) + 1];
    let many = json!({ "jobs": [{ "memoryMap": [], "stacks": [many] }] }).to_string();
    for (body, error) in [
        ("", "cannot be read"),
        ("[[[[[[", "cannot be read"),
        ("{\"jobs\": [{}]}", "cannot be read"),
        (many.as_str(), "more than 262144 addresses"),
    ] {
        assert_refused(&answer(&server, profile, Request::Symbolicate, body), error);
    }
    for request in [Request::Source, Request::Symbolicate] {
        assert_refused(&answer(&server, profile, request, "{\"jobs\":7}"), "");
    }
}

#[test]
fn source_files_are_those_of_the_code() {
    let (guest, path) = recorded();
    let source = source(&guest, &path, true);
    let profile = source.profile();
    let outer = guest.address("outer") + 8;
    let file = guest.folder.path().join("work.c");
    let file = file.to_str().unwrap();
    // Neighbouring paths, and paths outside of the folder.
    let folder = guest.folder.path().join("sources");
    let end = guest.folder.path().file_name().unwrap();
    let copy = folder.join(end);
    fs::create_dir_all(&copy).unwrap();
    fs::write(copy.join("secret"), "secret").unwrap();
    let ask = |server: &SymbolServer, offset: u64, file: &str| {
        let body = json!({
            "debugName": "work",
            "debugId": DEBUG_ID,
            "moduleOffset": format!("{offset:#x}"),
            "file": file,
        });
        answer(server, profile, Request::Source, &body.to_string())
    };
    let server = |folders: &[PathBuf]| {
        let folders = folders.iter().map(|folder| Sysroot::open(folder).unwrap());
        SymbolServer::new(profile, SourceTexts::new(folders.collect()))
    };
    let with = server(&[guest.root(), folder.clone()]);
    assert_refused(&ask(&with, outer, file), "none of the folders");
    // By the end of its path; a link that leaves the folder doesn't match.
    std::os::unix::fs::symlink(file, copy.join("work.c")).unwrap();
    assert_refused(&ask(&with, outer, file), "");
    fs::remove_file(copy.join("work.c")).unwrap();
    fs::write(copy.join("work.c"), SOURCE).unwrap();
    let found = ask(&with, outer, file);
    assert_eq!(
        [&found["source"], &found["file"]],
        [SOURCE, file],
        "{found}"
    );
    // By the whole path.
    let found = ask(&server(&[PathBuf::from("/")]), outer, file);
    assert_eq!(found["source"], SOURCE);
    let beside = file.replace("work.c", "secret");
    for (offset, file) in [
        (outer, beside.as_str()),
        (outer, "/etc/passwd"),
        (outer, "../../etc/passwd"),
        (0x7fff_ffff, file),
    ] {
        assert_refused(&ask(&with, offset, file), "no lines in this file");
    }
}

/// The profiler's requests (`src/profile-logic/fetch-assembly.ts` of its sources).
fn asm_request(start: u64, size: u64, continues: bool) -> Value {
    json!({
        "debugName": "work",
        "debugId": DEBUG_ID,
        "name": "work",
        "codeId": "0badc0de",
        "startAddress": format!("{start:#x}"),
        "size": format!("{size:#x}"),
        "continueUntilFunctionEnd": continues,
    })
}

#[test]
fn instructions_are_those_of_the_file() {
    let (guest, path) = recorded();
    let with = source(&guest, &path, true);
    let server = SymbolServer::new(with.profile(), SourceTexts::default());
    let ask = |body: &Value| {
        let body = body.to_string();
        answer(&server, with.profile(), Request::Assembly, &body)
    };
    let outer = guest.address("outer");
    let length = |name| guest.function(name).length;
    let whole = ask(&asm_request(outer, length("outer"), false));
    let numbers = [outer, length("outer")].map(|number| format!("{number:#x}"));
    assert_eq!(
        [&whole["startAddress"], &whole["size"]],
        [&numbers[0], &numbers[1]]
    );
    assert_eq!(
        (whole["arch"].as_str(), &whole["syntax"]),
        (Some("x86_64"), &json!(["Intel"]))
    );
    assert_eq!(instructions(&whole), disassembled(&guest, "outer"));
    // A few bytes, and the function that they begin.
    let begin = ask(&asm_request(outer, 1, false));
    assert_eq!(begin["instructions"].as_array().unwrap().len(), 1);
    let to_its_end = ask(&asm_request(outer, 1, true));
    assert_eq!(to_its_end, whole);
    // Requests as on samply's page, without the debug id.
    let mut by_code = asm_request(outer, length("outer"), false);
    by_code.as_object_mut().unwrap().remove("debugId");
    by_code.as_object_mut().unwrap().remove("debugName");
    assert_eq!(ask(&by_code), whole);
    let main = ask(&asm_request(guest.address("main"), length("main"), false));
    assert!(main.to_string().contains(" <outer>"), "{main}");
    for (body, error) in [
        (asm_request(0x7fff_ffff, 1, true), "no code"),
        (
            json!({ "startAddress": "0x1", "size": "0x1" }),
            "no library",
        ),
        (json!({ "startAddress": 1 }), "cannot be read"),
        (asm_request(outer, 0x1_ffff_ffff, false), ""),
    ] {
        assert_refused(&ask(&body), error);
    }
    let without = source(&guest, &path, false);
    let server = SymbolServer::new(without.profile(), SourceTexts::default());
    let body = asm_request(outer, 1, false).to_string();
    let refused = answer(&server, without.profile(), Request::Assembly, &body);
    assert_refused(&refused, "no code");
}

/// The distance of each instruction, and its first word.
fn instructions(answer: &Value) -> Vec<(u64, String)> {
    let instructions = answer["instructions"].as_array().unwrap().iter();
    let first_word = |text: &Value| {
        let text = text.as_str().unwrap();
        text.split(' ').next().unwrap().to_owned()
    };
    let instructions = instructions.map(|one| (one[0].as_u64().unwrap(), first_word(&one[1])));
    instructions.collect()
}

/// The same by objdump.
fn disassembled(guest: &Guest, function: &str) -> Vec<(u64, String)> {
    let begin = guest.address(function);
    let end = begin + guest.function(function).length;
    let output = std::process::Command::new("objdump")
        .args(["-d", "-M", "intel", "--no-show-raw-insn"])
        .arg(format!("--start-address={begin}"))
        .arg(format!("--stop-address={end}"))
        .arg(guest.program_file())
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| {
        let (address, instruction) = line.split_once(":\t")?;
        let address = u64::from_str_radix(address.trim(), 16).ok()?;
        let word = instruction.split_whitespace().next()?;
        Some((address - begin, word.to_owned()))
    });
    lines.collect()
}
