//! A session, whose collector is this test.

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use super::message::BYTES;
use super::*;

/// A session whose rules mean no guest of this host, and the collector's end.
fn session() -> (Session, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let (connection, collector) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let mut rules = Config::default();
    rules.attach.guests = vec!["no-such-guest".to_owned()];
    let session = Session {
        guests: Guests::new(rules),
        connection,
    };
    (session, collector)
}

#[test]
fn a_collector_can_only_close_the_connection() {
    let (mut open, collector) = session();
    assert!(open.goes_on() && open.goes_on());
    // None has a word to say.
    for said in [&[0_u8][..], &[1; 4096]] {
        let (mut spoken_to, collector) = session();
        rustix::net::send(&collector, said, SendFlags::empty()).unwrap();
        assert!(!spoken_to.goes_on());
    }
    // It wants no more, and still takes what comes.
    shutdown(&collector, Shutdown::Write).unwrap();
    assert!(!open.goes_on());
    let (mut closed, collector) = session();
    drop(collector);
    assert!(!closed.goes_on());
}

/// It reads late, and has everything in order; or it never reads, and is let go.
#[test]
fn a_slow_collector_holds_nobody_up() {
    let (mut slow, collector) = session();
    let count = 2000;
    let warn = |session: &mut Session, number: u32| {
        let warning = LauncherMessage::Warning(number.to_string());
        session.guests.put_last((warning, None));
    };
    (0..count).for_each(|number| warn(&mut slow, number));
    assert!(slow.goes_on());
    assert!(slow.guests.waiting() > 0);
    let mut bytes = [0; BYTES];
    let mut numbers = 0..count;
    while !numbers.is_empty() {
        match rustix::net::recv(&collector, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, length)) => match LauncherMessage::decode(&bytes[..length], 0).unwrap() {
                LauncherMessage::Warning(text) if text.parse() == Ok(numbers.start) => {
                    numbers.next();
                }
                // What this host lacks for attaching.
                other => assert!(matches!(other, LauncherMessage::Warning(_)), "{other:?}"),
            },
            Err(_) => assert!(slow.goes_on()),
        }
    }
    let most = u32::try_from(MAX_WAITING).unwrap();
    (0..2 * most).for_each(|number| warn(&mut slow, number));
    assert!(!slow.goes_on());
}
