//! Stacks of JVMs on this host, which wait in a call of known methods.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvmprof_recording::{LanguageFrame, StackEnd};
use vmm_sys_util::tempdir::TempDir;

use super::super::test_memory::Waiting;
use super::*;
use crate::Registers;
use crate::unwind::{Stack, StackMemory, UnwindCache, UnwindTable, UserRegisters, UserUnwinder};

/// Calls through built-in methods, with methods that compilers put into others. What is read from has many classes, so that compiled code
/// calls it whatever it is. Lines count from 1.
const PROGRAM: &str = r#"import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.util.ArrayList;

public class Loom {
  static int wait(int n, InputStream in) throws Exception {
    int first = in.read();
    return first + n;
  }

  static class Weaver {
    int weave(int n, InputStream in) {
      int own = n + 1;
      return inner(own, in);
    }
    private int inner(int n, InputStream in) {
      try {
        return Loom.wait(n, in);
      } catch (Exception e) {
        throw new RuntimeException(e);
      }
    }
  }

  static int middle(int n, InputStream in) {
    return new Weaver().weave(n, in) +
        1;
  }

  static int sort(InputStream in) {
    ArrayList<Integer> list = new ArrayList<>();
    list.add(7);
    list.add(8);
    list.sort((a, b) -> middle(a, in) - b);
    return list.get(0);
  }

  public static void main(String[] args) {
    InputStream[] all = {
      new ByteArrayInputStream(new byte[0]),
      InputStream.nullInputStream(),
      new InputStream() { public int read() { return 1; } },
      new InputStream() { public int read() { return 2; } },
    };
    int times = Integer.parseInt(args[0]);
    int sum = 0;
    for (int i = 0; i <= times; i++) {
      if (i == times) System.out.println("waiting");
      sum += sort(i < times ? all[i % 4] : System.in);
    }
    System.out.println(sum);
  }
}
"#;

/// The methods of the program that wait, innermost first, and the lines at which they begin.
const WAITING: [(&str, u32); 7] = [
    ("Loom.wait", 7),
    ("Loom$Weaver.inner", 18),
    ("Loom$Weaver.weave", 13),
    ("Loom.middle", 26),
    ("Loom.lambda$sort$0", 34),
    ("Loom.sort", 31),
    ("Loom.main", 39),
];
/// Options by which the program is interpreted, and compiled by each compiler, alone or at once.
const WAYS: [&[&str]; 4] = [
    &["-Xint"],
    &["-XX:TieredStopAtLevel=1", "-Xbatch"],
    &["-XX:-TieredCompilation", "-Xbatch"],
    &["-Xbatch"],
];

/// The programs of this host, and those in `KVMPROF_TEST_JAVAS`, `FILE:FILE`.
fn programs() -> Vec<PathBuf> {
    let more = std::env::var_os("KVMPROF_TEST_JAVAS").unwrap_or_default();
    let more: Vec<PathBuf> = std::env::split_paths(&more).collect();
    let found = [PathBuf::from("/usr/bin/java")].into_iter().chain(more);
    found.filter(|path| path.is_file()).collect()
}

/// What a waiting process has, for a walk of its stack.
struct OfProcess<'w> {
    waiting: &'w mut Waiting,
    process: &'w ProcessRuntime,
}

impl StackMemory for OfProcess<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.waiting.word(address)
    }

    fn code_before(&mut self, address: u64) -> Option<[u8; 8]> {
        let mut bytes = [0; 8];
        self.waiting.read(address.checked_sub(8)?, &mut bytes)?;
        Some(bytes)
    }

    fn executed(&mut self, frame: BareFrame) -> Executed {
        self.process.executed(frame, self.waiting)
    }
}

/// The unwinder of a process's files.
fn unwinder(waiting: &Waiting) -> UserUnwinder {
    let mut tables = BTreeMap::new();
    let code = waiting.mappings().filter(|mapping| mapping.is_executable);
    let mappings = code.filter_map(|mapping| {
        let table = tables.entry(mapping.path.clone()).or_insert_with(|| {
            let file = std::fs::read(&mapping.path).ok()?;
            UnwindTable::from_elf(&file).map(Arc::new)
        });
        let table = table.clone()?;
        Some((mapping.begin, mapping.end, mapping.offset, table))
    });
    UserUnwinder::new(mappings.collect::<Vec<_>>())
}

/// A method that is executed: its name, its file, and the line that is.
type Shown = (String, String, u32);

/// The stack of the waiting thread, if its frame pointer is `bp`.
fn walked(
    waiting: &mut Waiting,
    process: &ProcessRuntime,
    unwinder: &UserUnwinder,
    bp: u64,
) -> Stack {
    let start = UserRegisters::new(&Registers {
        rip: waiting.ip,
        rsp: waiting.sp,
        rbp: bp,
        cpl: 3,
        is_64_bit_code: true,
        ..Registers::default()
    });
    let mut stack = Stack::with_limit(1024);
    let mut cache = UnwindCache::default();
    let mut memory = OfProcess { waiting, process };
    stack.walk_user(&start, Some((unwinder, &mut cache)), &mut memory);
    stack
}

/// The methods that the waiting thread executes, innermost first, each with the line at which it begins. Nothing tells the thread's frame
/// pointer, which the JVM's C code needs: it is the one with which its stack is whole.
fn methods(waiting: &mut Waiting, process: &ProcessRuntime) -> Vec<(Shown, u32)> {
    let unwinder = unwinder(waiting);
    let pointers = (waiting.sp..waiting.sp + 512).step_by(8);
    let mut stacks = pointers.map(|bp| walked(waiting, process, &unwinder, bp));
    // With another one, it may seem to end early.
    let stack = stacks.find(|stack| {
        let mut frames = stack.frames().iter();
        let has_methods = frames.any(|word| LanguageFrame::from_word(*word).is_some());
        has_methods && stack.summary().user_end == StackEnd::Complete
    });
    drop(stacks);
    let functions = process.read_new(waiting);
    let stack = stack.unwrap();
    let named = stack.frames().iter().filter_map(|word| {
        let frame = LanguageFrame::from_word(*word)?;
        let function = functions.iter().find(|it| it.function == frame.function)?;
        let line = frame.offset.and_then(|offset| function.line_at(offset));
        let (name, file) = (function.name.clone(), function.file.clone());
        Some(((name, file, line.unwrap_or(0)), function.line))
    });
    named.collect()
}

/// The same by the JVM's own tool: `at java.util.ArrayList.sort(java.base@17.0.15/ArrayList.java:1721)`.
fn by_jstack(java: &Path, waiting: &Waiting) -> Vec<Shown> {
    let mut tool = Command::new(java);
    tool.args(["-m", "jdk.jcmd/sun.tools.jstack.JStack"]);
    let output = tool.arg(waiting.id().to_string()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let main = text
        .lines()
        .skip_while(|line| !line.starts_with("\"main\""));
    let frames = main.take_while(|line| !line.is_empty());
    let frames = frames.filter_map(|line| line.trim().strip_prefix("at "));
    let shown = frames.map(|frame| {
        let (name, place) = frame.strip_suffix(')').unwrap().split_once('(').unwrap();
        let place = place.rsplit_once('/').map_or(place, |(_, place)| place);
        let (file, line) = place.split_once(':').unwrap_or_default();
        (name.to_owned(), file.to_owned(), line.parse().unwrap_or(0))
    });
    shown.collect()
}

/// Compiles the program for `java` into a folder of its own.
fn compile(java: &Path) -> TempDir {
    let folder = TempDir::new().unwrap();
    let source = folder.as_path().join("Loom.java");
    std::fs::write(&source, PROGRAM).unwrap();
    let mut compiler = Command::new(java);
    let compiler = compiler.args(["-m", "jdk.compiler/com.sun.tools.javac.Main"]);
    assert!(compiler.arg(source).status().unwrap().success());
    folder
}

#[test]
fn methods_of_jvms_of_this_host_are_named() {
    for java in programs() {
        let folder = compile(&java);
        for options in WAYS {
            // Enough for each compiler, which compiles at once then.
            let times = if options == WAYS[0] { "1" } else { "20000" };
            let mut command = Command::new(&java);
            command.args(options).arg("-cp").arg(folder.as_path());
            let mut waiting = Waiting::new(command.args(["Loom", times]));
            let (runtime, bias) = waiting.runtime().unwrap();
            let process = ProcessRuntime::new(runtime, bias, 0x1000, 7);
            process.read_new(&mut waiting);
            let methods = methods(&mut waiting, &process);
            let own = methods
                .iter()
                .filter(|((_, file, _), _)| file == "Loom.java");
            let own: Vec<(&str, u32)> = own.map(|((name, ..), begin)| (&**name, *begin)).collect();
            let shown = methods.iter().map(|((name, file, line), _)| {
                // The tool has no file without a line.
                let file = if *line == 0 { "" } else { file };
                (name.clone(), file.to_owned(), *line)
            });
            let shown: Vec<Shown> = shown.collect();
            assert_eq!(shown, by_jstack(&java, &waiting), "{options:?}");
            assert_eq!(own, WAITING, "{} {options:?}", java.display());
        }
    }
}
