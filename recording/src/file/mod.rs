//! The file that a recording is kept in; `FORMAT.md` describes it.
//!
//! A file has a header and blocks, each with its length and checksum. Blocks are only appended: if the file is cut
//! off, all blocks before that are valid.

mod block;
mod budget;
mod bytes;
mod details;
mod encoder;
mod error;
mod exit_intervals;
mod folder;
mod functions;
mod generated_code;
mod guest;
mod info;
mod intake;
mod new_file;
mod observer;
mod piece;
mod reader;
mod recording;
mod samples;
mod sink;
mod symbol_changes;
mod task_looks;
mod times;
pub(crate) mod varint;

pub use block::{Block, HEADER, Kind, MAGIC, MAX_BLOCK, VERSION, header};
pub use budget::Budget;
pub use encoder::{Encoder, MAX_WAITING};
pub use error::{FileError, ReadError};
pub use folder::OutputFolder;
pub use functions::{LanguageFunction, LanguageFunctions};
pub use generated_code::{GeneratedCode, GeneratedCodeInfo};
pub use guest::{
    Binary, BinaryFunction, BinaryInfo, KernelInfo, Mapping, PauseInfo, ProcessLabels,
    ProcessMappings, ResetInfo, Segment, kernels_half, page_tables,
};
pub use info::{Account, KERNEL_CLOCK, RecordingInfo};
pub use new_file::{
    NewFile, RefusedOutput, create_folder, create_in_place, give_to_invoker, is_recording,
    open_in_place, open_to_append, write_new_file,
};
pub use observer::{Observer, Unobserved};
pub use piece::{Details, Looks, PackedExits, Piece, Samples};
pub use reader::Reader;
pub use recording::{Contents, Recording};
pub use samples::{BlockNumbers, SampleBlock, SamplesEncoder, decode as decode_samples};
pub use sink::{
    ClientSink, Delivered, END_ROOM, FileOptions, FileSink, QueuedBlock, RecordingFailure,
    RecordingFile, Sink, SymbolText,
};
pub use symbol_changes::{GoneCode, SymbolChange};
pub use task_looks::{MAX_FRAMES, MAX_TASKS, TasksEncoder, decode as decode_looks};
pub use times::{BlockTimes, SampleTimes, VcpuTimes};
