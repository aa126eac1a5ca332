//! The thread that reads files.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, channel, sync_channel};

use kvmprof_recording::elf;
use kvmprof_recording::file::BinaryInfo;

use super::BinarySources;
use super::disk_files::DiskFiles;
use crate::vm::block_signals;
use kvmprof_introspection::{Area, Backing, ProcessMap, UnwindTable, UserUnwinder};

/// The number by which mappings refer to a file (`BinaryInfo::id`).
pub type FileId = u32;

/// Maximum number of maps that wait for the thread. For further maps, stacks are unwound by frame pointers, and functions are shown
/// by their addresses.
const QUEUE: usize = 256;
/// Maximum number of bytes of unwind information that are kept.
const MAX_TABLES: usize = 512 << 20;

/// A map whose files are to be read.
struct Request {
    map: Arc<ProcessMap>,
    /// The file of each of the map's areas.
    files: Vec<Option<FileId>>,
}

enum Done {
    /// A file's block of a recording.
    File(Arc<[u8]>),
    /// All of a map's files.
    Map,
}

/// Reads files, each once, and gives processes that have mapped them the unwinders of their stacks.
pub struct BinaryLoader {
    queue: Option<SyncSender<Request>>,
    done: Option<Receiver<Done>>,
    /// The number of maps that were handed over and aren't done.
    pending: usize,
}

impl BinaryLoader {
    /// A loader that looks into `sources`. Its thread starts now, because the thread that uses the loader may not start threads.
    pub fn new(sources: BinarySources) -> Self {
        let mut loader = Self {
            queue: None,
            done: None,
            pending: 0,
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
        match queue.try_send(Request { map, files }) {
            Ok(()) => self.pending += 1,
            Err(TrySendError::Full(_)) => {}
            // A panic of that thread has been reported already.
            Err(TrySendError::Disconnected(_)) => self.queue = None,
        }
    }

    fn start(&mut self, sources: BinarySources) -> io::Result<()> {
        let (queue, requests) = sync_channel(QUEUE);
        let (sender, done) = channel();
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
                    tables: BTreeMap::new(),
                    tables_bytes: 0,
                };
                thread.run(&requests, |result| {
                    // Nobody receives the result if the guest has ended.
                    let _ = sender.send(result);
                });
            })?;
        (self.queue, self.done) = (Some(queue), Some(done));
        Ok(())
    }

    /// Whether there are files that are still to be read.
    pub fn is_busy(&self) -> bool {
        self.pending > 0
    }

    /// The blocks of files that have been read since the last call.
    pub fn take(&mut self) -> Vec<Arc<[u8]>> {
        let mut blocks = Vec::new();
        let Some(done) = &self.done else {
            return blocks;
        };
        while self.pending > 0 {
            match done.try_recv() {
                Ok(Done::File(block)) => blocks.push(block),
                Ok(Done::Map) => self.pending -= 1,
                Err(TryRecvError::Empty) => break,
                // A panic of that thread has been reported already.
                Err(TryRecvError::Disconnected) => self.pending = 0,
            }
        }
        blocks
    }
}

struct Thread {
    sources: BinarySources,
    disks: DiskFiles,
    /// The unwind tables of the files that have been read; `None` for files without tables.
    tables: BTreeMap<FileId, Option<Arc<UnwindTable>>>,
    tables_bytes: usize,
}

impl Thread {
    fn run(mut self, requests: &Receiver<Request>, done: impl Fn(Done)) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                match requests.recv() {
                    Ok(request) => waiting.push_back(request),
                    Err(_) => return,
                }
            }
            while waiting.len() < QUEUE
                && let Ok(request) = requests.try_recv()
            {
                waiting.push_back(request);
            }
            // A process that executes the same files as others needn't wait for the others: many processes end before all files have been read.
            waiting.retain(|request| {
                let is_known = self.first_unknown(request).is_none();
                if is_known {
                    self.finish(request);
                    done(Done::Map);
                }
                !is_known
            });
            let next = waiting.front();
            if let Some((area, id)) = next.and_then(|request| self.first_unknown(request))
                && let Some(block) = self.read(area, id)
            {
                done(Done::File(block));
            }
        }
    }

    /// The first of a map's files that hasn't been read.
    fn first_unknown<'r>(&self, request: &'r Request) -> Option<(&'r Area, FileId)> {
        let mut files = request.map.areas.iter().zip(&request.files);
        files.find_map(|(area, id)| {
            id.filter(|id| !self.tables.contains_key(id))
                .map(|id| (area, id))
        })
    }

    /// Makes the unwinder of a map whose files have been read.
    fn finish(&self, Request { map, files }: &Request) {
        let mappings = map.areas.iter().zip(files).filter_map(|(area, id)| {
            let table = self.tables.get(id.as_ref()?)?.clone()?;
            Some((area.begin, area.end, area.offset, table))
        });
        map.unwinder.put(UserUnwinder::new(mappings));
    }

    /// Reads the file of `area`; the result is its block.
    fn read(&mut self, area: &Area, id: FileId) -> Option<Arc<[u8]>> {
        // The file is read only once, whatever the result.
        self.tables.insert(id, None);
        let found = match &area.backing {
            Backing::File(file) => self.sources.file(file, &self.disks)?,
            Backing::Vdso => self.sources.vdso()?,
            Backing::Anonymous => return None,
        };
        let parsed = elf::parse(&found.contents).ok()?;
        if let Some(table) = UnwindTable::from_elf(&found.contents)
            && self.tables_bytes + table.bytes() <= MAX_TABLES
        {
            self.tables_bytes += table.bytes();
            self.tables.insert(id, Some(Arc::new(table)));
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
