//! The thread that reads files.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, channel, sync_channel,
};
use std::time::{Duration, Instant};

use kvmprof_recording::elf;
use kvmprof_recording::file::BinaryInfo;
use kvmprof_recording::status::LimitsStatus;

use super::BinarySources;
use super::disk_files::DiskFiles;
use super::generated_code::GeneratedCodeReader;
use super::language_functions::LanguageFunctionReader;
use super::tables::Tables;
use crate::signals::block_signals;
use kvmprof_introspection::{
    Area, Backing, ProcessMap, ProcessRuntime, ProgramFile, UnwindTable, UserUnwinder,
    recognize_runtime,
};

/// The number by which mappings refer to a file (`BinaryInfo::id`).
pub type FileId = u32;

/// Maximum number of maps that wait for the thread. For further maps, stacks are unwound by frame pointers, and functions are shown
/// by their addresses.
const QUEUE: usize = 256;
/// When a file that couldn't be read is tried again: after this time, which becomes [`LATER`] times as long each time. Its pages may come into
/// memory, or to the disk, a little later.
const RETRY: Duration = Duration::from_secs(1);
const LATER: u32 = 4;
/// Maximum number of tries: the last one is five minutes after the first.
const MAX_TRIES: u32 = 6;
/// Maximum number of files that are tried again. Further ones are tried once.
const MAX_FAILED: usize = 4096;

/// A map whose files are to be read.
struct Request {
    map: Arc<ProcessMap>,
    /// The file of each of the map's areas.
    files: Vec<Option<FileId>>,
    /// How many files may still be read for it: tables of some may have to make room for those of others.
    reads_left: usize,
}

/// What the thread that reads files has done.
enum LoadResult {
    /// A file's block of a recording.
    File(FileId, Arc<[u8]>),
    /// A block of names of functions of languages, or of generated code.
    Functions(Arc<[u8]>),
    /// All of a map's files.
    Map,
}

/// A file that couldn't be read yet.
struct Failure {
    area: Area,
    tries: u32,
    /// When it is tried again.
    next: Instant,
}

/// Reads files, and gives processes that have mapped them the unwinders of their stacks.
pub struct BinaryLoader {
    queue: Option<SyncSender<Request>>,
    done: Option<Receiver<LoadResult>>,
    /// The number of maps that were delivered and aren't done.
    pending: usize,
    /// The number of maps that weren't delivered, because too many were waiting.
    refused: u64,
    omissions: Arc<OmissionCounts>,
}

/// What limits have cost, counted by the thread that reads files.
#[derive(Debug, Default)]
struct OmissionCounts {
    tables: AtomicU64,
    functions: AtomicU64,
}

impl BinaryLoader {
    /// A loader that looks into `sources`. Its thread starts now, because the thread that uses the loader may not start threads.
    pub fn new(sources: BinarySources) -> Self {
        let mut loader = Self {
            queue: None,
            done: None,
            pending: 0,
            refused: 0,
            omissions: Arc::default(),
        };
        if let Err(error) = loader.start(sources) {
            log::error!("The guest's programs can't be read: {error}");
        }
        loader
    }

    /// Requests the files of `map`. `files` are the files of its areas.
    pub fn load(&mut self, map: Arc<ProcessMap>, files: Vec<Option<FileId>>) {
        let Some(queue) = &self.queue else {
            return;
        };
        let reads_left = files.len();
        match queue.try_send(Request {
            map,
            files,
            reads_left,
        }) {
            Ok(()) => self.pending += 1,
            Err(TrySendError::Full(_)) => self.refused += 1,
            // A panic of that thread has been reported already.
            Err(TrySendError::Disconnected(_)) => self.queue = None,
        }
    }

    fn start(&mut self, sources: BinarySources) -> io::Result<()> {
        let (queue, requests) = sync_channel(QUEUE);
        let (sender, done) = channel();
        let omissions = Arc::clone(&self.omissions);
        std::thread::Builder::new()
            .name("binaries".into())
            .spawn(move || {
                // This thread blocks the signals that end the guest, which the event thread takes: their handlers make system calls
                // that this thread's filter doesn't allow.
                if let Err(error) = block_signals() {
                    log::warn!("Cannot block signals in the thread binaries: {error}");
                }
                kvmprof_sandbox::enter(if sources.has_sysroot() {
                    kvmprof_sandbox::Thread::BinariesWithSysroot
                } else {
                    kvmprof_sandbox::Thread::Binaries
                });
                let thread = Thread {
                    sources,
                    disks: DiskFiles::default(),
                    tables: Tables::default(),
                    failed: BTreeMap::new(),
                    functions: LanguageFunctionReader::default(),
                    generated: GeneratedCodeReader::default(),
                    omissions,
                };
                thread.run(&requests, |result| {
                    // Nobody receives the result if the guest has ended.
                    let _ = sender.send(result);
                });
            })?;
        (self.queue, self.done) = (Some(queue), Some(done));
        Ok(())
    }

    /// Enters what limits have cost until now.
    pub fn enter_omissions(&self, limits: &mut LimitsStatus) {
        limits.unread_mappings = self.refused;
        limits.refused_tables = self.omissions.tables.load(Ordering::Relaxed);
        limits.unnamed_functions = self.omissions.functions.load(Ordering::Relaxed);
    }

    /// Whether there are files that are still to be read.
    pub fn is_busy(&self) -> bool {
        self.pending > 0
    }

    /// The blocks of files that have been read since the last call, and of functions of languages and of generated code, which have no file. A file's block may come after its map is done,
    /// and more than once.
    pub fn take(&mut self) -> Vec<(Option<FileId>, Arc<[u8]>)> {
        let mut blocks = Vec::new();
        let Some(done) = &self.done else {
            return blocks;
        };
        loop {
            match done.try_recv() {
                Ok(LoadResult::File(id, block)) => blocks.push((Some(id), block)),
                Ok(LoadResult::Functions(block)) => blocks.push((None, block)),
                Ok(LoadResult::Map) => self.pending = self.pending.saturating_sub(1),
                Err(TryRecvError::Empty) => break,
                // A panic of that thread has been reported already.
                Err(TryRecvError::Disconnected) => {
                    self.pending = 0;
                    break;
                }
            }
        }
        blocks
    }
}

struct Thread {
    sources: BinarySources,
    disks: DiskFiles,
    /// The unwind tables of the files that have been read.
    tables: Tables,
    /// The files that are to be read again.
    failed: BTreeMap<FileId, Failure>,
    /// Reads the functions of processes whose language has a runtime that is known.
    functions: LanguageFunctionReader,
    /// Reads the names of code that processes generate.
    generated: GeneratedCodeReader,
    omissions: Arc<OmissionCounts>,
}

impl Thread {
    fn run(mut self, requests: &Receiver<Request>, done: impl Fn(LoadResult)) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                match self.next_request(requests) {
                    Ok(request) => waiting.push_back(request),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            while waiting.len() < QUEUE
                && let Ok(request) = requests.try_recv()
            {
                waiting.push_back(request);
            }
            // A process that executes the same files as others needn't wait for the others: many processes end before all files have been read.
            waiting.retain(|request| {
                let is_done = request.reads_left == 0 || self.first_unknown(request).is_none();
                if is_done {
                    self.finish(request);
                    done(LoadResult::Map);
                }
                !is_done
            });
            let next = waiting.front_mut().and_then(|request| {
                request.reads_left = request.reads_left.saturating_sub(1);
                let (area, id) = self.first_unknown(request)?;
                Some((area.clone(), id))
            });
            if let Some(block) = self.functions.read(&self.sources) {
                done(LoadResult::Functions(block));
            }
            for block in self.generated.read(&self.sources) {
                done(LoadResult::Functions(block));
            }
            if let Some((area, id)) = next {
                self.read(area, id, 0, &done);
            } else {
                self.retry(&done);
            }
        }
    }

    /// Waits for the next request, or until a file or functions are to be read again.
    fn next_request(&self, requests: &Receiver<Request>) -> Result<Request, RecvTimeoutError> {
        let failures = self.failed.values().map(|failure| failure.next);
        let languages = failures.chain(self.functions.next());
        match languages.chain(self.generated.next()).min() {
            Some(next) => requests.recv_timeout(next.saturating_duration_since(Instant::now())),
            None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// Reads a file again whose time has come, if there is one.
    fn retry(&mut self, done: &impl Fn(LoadResult)) {
        let now = Instant::now();
        let mut failed = self.failed.iter();
        let due = failed.find(|(_, failure)| failure.next <= now);
        if let Some(id) = due.map(|(id, _)| *id)
            && let Some(Failure { area, tries, .. }) = self.failed.remove(&id)
        {
            self.read(area, id, tries, done);
        }
    }

    /// The first of a map's files that hasn't been read.
    fn first_unknown<'r>(&self, request: &'r Request) -> Option<(&'r Area, FileId)> {
        let mut files = request.map.areas.iter().zip(&request.files);
        files.find_map(|(area, id)| id.filter(|id| !self.tables.has(*id)).map(|id| (area, id)))
    }

    /// Makes the unwinder of a map whose files have been read.
    fn finish(&mut self, Request { map, files, .. }: &Request) {
        let mappings = map.areas.iter().zip(files).filter_map(|(area, id)| {
            let table = self.tables.get((*id)?)?;
            Some((area.begin, area.end, area.offset, table))
        });
        map.unwinder.put(UserUnwinder::new(mappings));
        self.generated.add(map);
        if let Some(runtime) = self.runtime(map, files) {
            self.sources.prepare(&runtime);
            self.functions.add(&runtime);
            map.unwinder.put_runtime(runtime);
        }
    }

    /// The runtime of a language in the process with `map`, whose areas have these `files`.
    fn runtime(
        &mut self,
        map: &ProcessMap,
        files: &[Option<FileId>],
    ) -> Option<Arc<ProcessRuntime>> {
        map.areas.iter().zip(files).find_map(|(area, id)| {
            let runtime = self.tables.runtime((*id)?)?;
            let table = self.tables.get((*id)?)?;
            let bias = table.bias(area.begin, area.offset)?;
            let runtime = ProcessRuntime::new(runtime, bias, map.root, map.pid);
            Some(Arc::new(runtime))
        })
    }

    /// Reads the file of `area`, after this many `tries`, and hands its block to `done`. What couldn't be read is tried again later.
    fn read(&mut self, area: Area, id: FileId, tries: u32, done: &impl Fn(LoadResult)) {
        // Maps don't wait for another try.
        self.tables.put(id, None);
        self.failed.remove(&id);
        let block = self.block(&area, id);
        if let Some(block) = block {
            done(LoadResult::File(id, block));
        } else if tries + 1 < MAX_TRIES && self.failed.len() < MAX_FAILED {
            let next = Instant::now() + RETRY * LATER.saturating_pow(tries);
            let tries = tries + 1;
            self.failed.insert(id, Failure { area, tries, next });
        }
    }

    /// The block of the file of `area`; `None` if it can't be read, or isn't whole.
    fn block(&mut self, area: &Area, id: FileId) -> Option<Arc<[u8]>> {
        let found = match &area.backing {
            Backing::File(file) => self.sources.file(file, &self.disks)?,
            Backing::Vdso => self.sources.vdso()?,
            Backing::Anonymous => return None,
        };
        let parsed = elf::parse(&found.contents).ok()?;
        let omissions = &self.omissions;
        if !self.tables.put(id, UnwindTable::from_elf(&found.contents)) {
            omissions.tables.fetch_add(1, Ordering::Relaxed);
        }
        let file = ProgramFile {
            path: area.name(),
            contents: &found.contents,
        };
        if let Some(runtime) = recognize_runtime(&file) {
            self.tables.put_runtime(id, runtime);
        }
        if parsed.unnamed > 0 {
            let unnamed = parsed.unnamed as u64;
            omissions.functions.fetch_add(unnamed, Ordering::Relaxed);
            log::warn!(
                "{} functions of the guest's file {} have no name in recordings: it has more or longer names than kvmprof reads",
                parsed.unnamed,
                area.name()
            );
        }
        let info = BinaryInfo {
            id,
            file: area.name().to_owned(),
            build_id: parsed.build_id,
            segments: parsed.segments,
            code_crc32: parsed.code_crc32,
            source: found.source.to_owned(),
        };
        Some(info.to_block(&parsed.functions)?.into())
    }
}
