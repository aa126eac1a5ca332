#!/usr/bin/env python3
"""Tries every error that WIRE.md, PCS.md and PRF.md name, and breaks the protocol in every way.

    page_checks.py SOCKET check        every error of WIRE.md and PCS.md
    page_checks.py SOCKET check-prf    every error of PRF.md, on minor 0; its table is lost
    page_checks.py SOCKET malformed    every broken frame; an innocent client must not notice

Exit status: 0 all is as the pages say, 1 something isn't, 2 no connection.
"""

import argparse
import errno
import socket
import struct
import sys

from pcs_client import (
    BUF_INCR, CLASSIC, CLOSE, HEADER, HELLO, IOCTL, MAGIC, NONBLOCKING, OPEN, PCS, PCS_FLUSH, PCS_GETHZ,
    PCS_SETBSIZE, PCS_SETFORMAT, PCS_SETHZ, PCS_STOP, PRF, PROF_ALL, PROF_GROUP, PROF_LIST, READABLE, REPLY,
    STATUS, VERSION, WRITABLE, WRITE, Connection, Device, account, main,
)
from prf_client import (
    LOADED, ON, PRF_GETMAX, PRF_GETSIZE, PRF_GETSTATUS, PRF_SETSTATE, WORD, contents, number, table,
)


def outcome(action):
    """The name of the error that an action ends with, or "ok"."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "ok"


def list_of(*numbers):
    """Data of a PROF_LIST."""
    return struct.pack(f"<{len(numbers)}i", *numbers)


def error_cases(one, other, pcs):
    """(name, expected, action): the pages' errors; `one` has pcs open, `other` doesn't."""
    ioctl = pcs.ioctl
    nobody = Device(one, 12345)
    yield "a second open of pcs", "EBUSY", lambda: other.open(PCS)
    yield "a second open on the same connection", "EBUSY", lambda: one.open(PCS)
    yield "another minor of pcs", "ENXIO", lambda: other.open(PCS, 1)
    yield "device 0", "ENODEV", lambda: other.open(0)
    yield "device 999", "ENODEV", lambda: other.open(999)
    yield "open with an unknown flag", "EINVAL", lambda: other.open(STATUS, 0, 2)
    yield "read of a handle that isn't open", "EBADF", lambda: nobody.read()
    yield "write to a handle that isn't open", "EBADF", lambda: nobody.write(b"x")
    yield "ioctl on a handle that isn't open", "EBADF", lambda: nobody.ioctl(PROF_ALL)
    yield "poll of a handle that isn't open", "EBADF", lambda: nobody.poll()
    yield "close of a handle that isn't open", "EBADF", lambda: nobody.close()
    yield "a handle of another connection", "EBADF", lambda: Device(other, pcs.handle).read()
    yield "write to pcs", "EBADF", lambda: pcs.write(b"x")
    yield "read with an unknown flag", "EINVAL", lambda: pcs.read(1, 2)
    yield "nonblocking read of nothing", "EAGAIN", lambda: pcs.read(1024, NONBLOCKING)
    yield "an unknown command", "EINVAL", lambda: ioctl(0x5003)
    yield "command 0", "EINVAL", lambda: ioctl(0)
    yield "BUF_INCR 0", "EINVAL", lambda: ioctl(BUF_INCR, 0)
    yield "BUF_INCR -1", "EINVAL", lambda: ioctl(BUF_INCR, -1)
    yield "BUF_INCR past the limit", "EINVAL", lambda: ioctl(BUF_INCR, 8)
    yield "BUF_INCR by 2**40", "EINVAL", lambda: ioctl(BUF_INCR, 2**40)
    yield "BUF_INCR up to the limit", "ok", lambda: ioctl(BUF_INCR, 7)
    yield "BUF_INCR from the limit", "EINVAL", lambda: ioctl(BUF_INCR, 1)
    yield "PROF_LIST of none", "EINVAL", lambda: ioctl(PROF_LIST, data=list_of(0))
    yield "PROF_LIST of -1", "EINVAL", lambda: ioctl(PROF_LIST, data=list_of(-1))
    yield "PROF_LIST of 6", "EINVAL", lambda: ioctl(PROF_LIST, data=list_of(6, 1, 2, 3, 4, 5, 6))
    yield "PROF_LIST of NULL", "EFAULT", lambda: ioctl(PROF_LIST)
    yield "PROF_LIST cut off", "EFAULT", lambda: ioctl(PROF_LIST, data=list_of(2, 1))
    yield "PCS_SETFORMAT 2", "EINVAL", lambda: ioctl(PCS_SETFORMAT, 2)
    yield "PCS_SETBSIZE 1000", "EINVAL", lambda: ioctl(PCS_SETBSIZE, 1000)
    yield "PCS_SETBSIZE 131072", "EINVAL", lambda: ioctl(PCS_SETBSIZE, 131072)
    yield "PCS_SETHZ 0", "EINVAL", lambda: ioctl(PCS_SETHZ, 0)
    yield "PCS_SETHZ 10001", "EINVAL", lambda: ioctl(PCS_SETHZ, 10001)
    yield "PROF_LIST of 5", "ok", lambda: ioctl(PROF_LIST, data=list_of(5, 1, 2, 3, 4, 5))
    yield "PROF_GROUP", "ok", lambda: ioctl(PROF_GROUP, 1)
    yield "PCS_SETFORMAT after PROF_*", "EBUSY", lambda: ioctl(PCS_SETFORMAT, CLASSIC)
    yield "PCS_SETBSIZE after PROF_*", "EBUSY", lambda: ioctl(PCS_SETBSIZE, 2048)
    yield "PCS_FLUSH", "ok", lambda: ioctl(PCS_FLUSH)
    yield "PCS_STOP", "ok", lambda: ioctl(PCS_STOP)
    yield "PCS_STOP again", "ok", lambda: ioctl(PCS_STOP)
    yield "PROF_ALL after PCS_STOP", "EINVAL", lambda: ioctl(PROF_ALL)
    yield "BUF_INCR after PCS_STOP", "EINVAL", lambda: ioctl(BUF_INCR, 1)
    yield "reads up to the end of file", "ok", pcs.read_to_end
    yield "PCS_GETSTAT", "ok", lambda: account(pcs)
    yield "close", "ok", pcs.close
    yield "close again", "EBADF", pcs.close
    yield "open after close", "ok", lambda: other.open(PCS).close()


def waiting_cases(connection):
    """Reads that wait: cancelled, closed, and not in the way of others."""
    pcs = connection.open(PCS)
    first, second = pcs.start_read(1024), pcs.start_read(1024)
    yield "ioctl while reads wait", "ok", lambda: pcs.ioctl(PCS_GETHZ)
    yield "poll for events that there aren't", "EINVAL", lambda: pcs.poll(events=8)
    yield "nonblocking poll while nothing is there", "ok", lambda: pcs.poll(flags=NONBLOCKING)
    yield "cancel of a read", "ok", lambda: connection.cancel(first)
    yield "the cancelled read", "EINTR", lambda: connection.wait(first)
    yield "cancel of nothing", "ok", lambda: connection.cancel(first)
    yield "close while a read waits", "ok", pcs.close
    yield "the read of what was closed", "EBADF", lambda: connection.wait(second)


def limit_cases(connection):
    """The limits that the hello names."""
    facts = connection.facts
    devices = []

    def open_all():
        for _ in range(facts["max_handles"]):
            devices.append(connection.open(STATUS))

    yield "as many opens as allowed", "ok", open_all
    yield "one open more", "EMFILE", lambda: connection.open(STATUS)

    def close_all():
        for device in devices:
            device.close()

    yield "closing them", "ok", close_all
    pcs = connection.open(PCS)
    tags = [pcs.start_read(1) for _ in range(facts["max_outstanding"] + 1)]
    yield "one waiting read more than allowed", "ENOBUFS", lambda: connection.wait(tags[-1])
    yield "close while all wait", "ok", pcs.close
    yield "the last that waited", "EBADF", lambda: connection.wait(tags[-2])


def prf_cases(one, other, prf):
    """The errors of PRF.md, on a minor; `prf` is open on `one`."""
    most = number(prf, PRF_GETMAX)

    def status_is(expected):
        if number(prf, PRF_GETSTATUS) != expected:
            raise OSError(errno.EPROTO, "another status")

    def size_is(expected):
        if number(prf, PRF_GETSIZE) != expected:
            raise OSError(errno.EPROTO, "another size")

    def write(*addresses):
        if prf.write(table(addresses)) != WORD * len(addresses):
            raise OSError(errno.EPROTO, "not all was written")

    def read_is(limit, expected):
        if len(prf.read(limit)) != expected:
            raise OSError(errno.EPROTO, "another length")

    yield "minor 254", "ENXIO", lambda: other.open(PRF, 254)
    yield "minor 256", "ENXIO", lambda: other.open(PRF, 256)
    yield "a second open", "ok", lambda: other.open(PRF).close()
    yield "an invalid table", "EINVAL", lambda: write(1, 3, 2)
    yield "status after it", "ok", lambda: status_is(0)
    yield "read without a table", "ENXIO", lambda: prf.read(64)
    yield "turning on without a table", "ok", lambda: prf.ioctl(PRF_SETSTATE, ON)
    yield "which has no effect", "ok", lambda: status_is(0)
    yield "an unknown command", "EINVAL", lambda: prf.ioctl(0x4605)
    yield "a command of pcs", "EINVAL", lambda: prf.ioctl(PROF_ALL)
    yield "two addresses", "E2BIG", lambda: write(1, 2)
    yield "none", "E2BIG", write
    yield "a part of an address", "E2BIG", lambda: prf.write(table((1, 2, 3)) + b"x")
    yield "a table", "ok", lambda: write(0, 10, 10, 20)
    yield "its status", "ok", lambda: status_is(LOADED)
    yield "its size", "ok", lambda: size_is(4)
    yield "too many addresses", "ENOSPC", lambda: prf.write(bytes(WORD * (most + 1)))
    yield "too few, with a table", "E2BIG", lambda: write(1, 2)
    yield "leave the state unchanged", "ok", lambda: (status_is(LOADED), size_is(4))
    yield "a read", "ok", lambda: read_is(1000, (4 + 4 + 2) * WORD)
    yield "another: from the start, no end", "ok", lambda: read_is(1000, (4 + 4 + 2) * WORD)
    yield "a read cut at any byte", "ok", lambda: read_is(13, 13)
    yield "its contents", "ok", lambda: contents(prf)
    yield "turning on", "ok", lambda: prf.ioctl(PRF_SETSTATE, ON)
    yield "status", "ok", lambda: status_is(ON | LOADED)
    yield "a write while on", "EBUSY", lambda: write(1, 2, 3)
    yield "an invalid one while on", "EBUSY", lambda: write(3, 2, 1)
    yield "too short a one while on", "E2BIG", lambda: write(1, 2)
    yield "leave it on", "ok", lambda: (status_is(ON | LOADED), size_is(4))
    pcs = other.open(PCS)
    yield "another rate for pcs while prf is on", "EBUSY", lambda: pcs.ioctl(PCS_SETHZ, 1000)
    pcs.close()

    def is_ready():
        if prf.poll(READABLE | WRITABLE, NONBLOCKING) != READABLE | WRITABLE:
            raise OSError(errno.EPROTO, "not ready")

    yield "ready for both", "ok", is_ready
    yield "turning off: only the lowest bit counts", "ok", lambda: prf.ioctl(PRF_SETSTATE, 2)
    yield "status at last", "ok", lambda: status_is(LOADED)
    yield "close", "ok", prf.close
    yield "read after close", "EBADF", lambda: prf.read(8)


def tried(groups):
    """Tries all cases of all groups; the exit status."""
    failures = 0
    for group in groups:
        for name, expected, action in group():
            failures += report(name, expected, outcome(action))
    return 1 if failures else 0


def check(options):
    """Tries every error of WIRE.md and PCS.md."""
    with Connection(options.socket) as one, Connection(options.socket) as other:
        return tried((
            lambda: error_cases(one, other, one.open(PCS)),
            lambda: waiting_cases(one),
            lambda: limit_cases(one),
        ))


def check_prf(options):
    """Tries every error of PRF.md."""
    with Connection(options.socket) as one, Connection(options.socket) as other:
        return tried((lambda: prf_cases(one, other, one.open(PRF)),))


def report(name, expected, seen):
    """Prints a case; 1 when it failed."""
    good = seen == expected
    print(f"{'ok' if good else 'FAILED'}: {name}: {seen}" + ("" if good else f", expected {expected}"))
    return 0 if good else 1


def frame(kind, body=b"", length=None, reserved=0, handle=0, tag=77):
    """A frame that needn't be right."""
    length = len(body) if length is None else length
    return HEADER.pack(length, tag, kind, reserved, handle) + body


MALFORMED = {
    "a length beyond all bounds": frame(WRITE, length=0xFFFFFFFF, handle=1),
    "a write of one byte too many": frame(WRITE, length=4 + 4194304 + 1, handle=1),
    "an ioctl with too much data": frame(IOCTL, length=16 + 65536 + 1, handle=1),
    "a body that is too short": frame(OPEN, b"\1\0\0"),
    "a body that is too long": frame(CLOSE, b"x", handle=1),
    "kind 0": frame(0),
    "an unknown kind": frame(9),
    "a reply": frame(CLOSE | REPLY),
    "a reserved field that isn't 0": frame(CLOSE, reserved=1, handle=1),
    "an open with a handle": frame(OPEN, bytes(8), handle=1),
    "a second hello": frame(HELLO, MAGIC + struct.pack("<HHI", 1, 1, 0)),
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "ones": b"\xff" * 100000,
}


def closed_after(options, data, hello):
    """Sends data; "closed" when the server closes without a reply."""
    with Connection(options.socket, hello) as connection:
        connection.socket.settimeout(30)
        try:
            connection.socket.sendall(data)
            rest = connection.socket.recv(1)
        except (BrokenPipeError, ConnectionResetError):
            rest = b""
        except socket.timeout:
            return "left open"
        return "answered" if rest else "closed"


def malformed(options):
    """Breaks the protocol in every way; another connection must not notice."""
    failures = 0
    with Connection(options.socket) as witness:
        pcs = witness.open(PCS)
        for name, data in MALFORMED.items():
            failures += report(name, "closed", closed_after(options, data, True))
            failures += report("  the other client", "ok", outcome(lambda: pcs.ioctl(PCS_GETHZ)))
        for name, data in (
            ("no hello", frame(OPEN, struct.pack("<HHI", STATUS, 0, 0))),
            ("a wrong magic", frame(HELLO, b"KVMPROF\0" + struct.pack("<HHI", 1, 1, 0))),
        ):
            failures += report(name, "closed", closed_after(options, data, False))
        with Connection(options.socket) as half:
            half.socket.sendall(frame(WRITE, b"half a frame", length=1000, handle=1))
        with Connection(options.socket, hello=False) as later:
            version = later.hello(2, 65535)["version"]
            failures += report("a version that isn't there yet", 0, version)
            failures += report("the hello after that", VERSION, later.hello()["version"])
        failures += report("the other client at last", "ok", outcome(pcs.close))
    return 1 if failures else 0


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("socket", help="what kvmprof was given as --socket")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="try every error of WIRE.md and PCS.md").set_defaults(run=check)
    commands.add_parser("check-prf", help="try every error of PRF.md").set_defaults(run=check_prf)
    commands.add_parser("malformed", help="break the protocol").set_defaults(run=malformed)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main("page_checks", arguments()))
