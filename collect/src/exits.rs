//! The exits of guests of other VMMs, which `kvmprof exits` counts for the launcher: blocks of a recording that come by a pipe.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::thread::Builder;

use kvmprof_recording::file::{Piece, ReadError, Reader};

use crate::sockets::Message;

/// Maximum number of bytes that are read at once.
const PIECE: usize = 64 << 10;

/// Why no more exits come.
#[derive(Debug, thiserror::Error)]
enum ExitsError {
    #[error(transparent)]
    Blocks(#[from] ReadError),
    #[error(transparent)]
    Pipe(#[from] io::Error),
}

/// Passes on the exits of the guest of this `name` that come by `pipe`, by a thread that ends with the pipe or the collector.
///
/// # Errors
/// The host gives no thread.
pub fn follow(pipe: OwnedFd, name: String, sender: SyncSender<Message>) -> io::Result<()> {
    let pass = move || {
        if let Err(error) = pass_on(io::PipeReader::from(pipe), &name, &sender) {
            log::warn!("Guest {name}: its exits can't be read: {error}");
        }
    };
    Builder::new().name("exits".into()).spawn(pass).map(drop)
}

fn pass_on(
    mut pipe: impl Read,
    name: &str,
    sender: &SyncSender<Message>,
) -> Result<(), ExitsError> {
    let mut reader = Reader::default();
    let mut buffer = vec![0; PIECE];
    loop {
        let length = match pipe.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        reader.push(buffer.get(..length).unwrap_or_default());
        while let Some(block) = reader.next_block()? {
            let Some(Piece::Exits(exits)) = block.piece()? else {
                continue;
            };
            let message = Message::Exits(name.to_owned(), Box::new(exits.read()?));
            if sender.send(message).is_err() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use kvmprof_recording::exits::ExitInterval;
    use kvmprof_recording::file::{Account, header};

    use super::*;

    #[test]
    fn intervals_come_one_by_one_until_a_block_is_wrong() {
        let interval = |begin| ExitInterval {
            begin,
            end: begin + 1,
            vcpus: 2,
            ..ExitInterval::default()
        };
        let mut bytes = header().to_vec();
        bytes.extend(interval(1).to_block().unwrap());
        bytes.extend(Account::default().to_block().unwrap());
        bytes.extend(interval(2).to_block().unwrap());
        let whole = bytes.len();
        bytes.extend([9; 64]);
        for (length, is_right) in [(whole, true), (whole - 1, true), (bytes.len(), false)] {
            let (sender, messages) = sync_channel(8);
            let read = pass_on(&bytes[..length], "db1", &sender);
            assert_eq!(read.is_ok(), is_right, "{read:?}");
            drop(sender);
            let begins = messages.iter().map(|message| match message {
                Message::Exits(name, interval) if name == "db1" => interval.begin,
                other => panic!("{other:?}"),
            });
            let expected: &[u64] = if length < whole { &[1] } else { &[1, 2] };
            assert_eq!(begins.collect::<Vec<u64>>(), expected);
        }
    }
}
