#!/usr/bin/env python3
"""A client of kvmprof's host socket in plain Python, written from WIRE.md and PCS.md.

    pcs_client.py SOCKET record --seconds 5        who used the time: counts by type and pid
    pcs_client.py SOCKET record --seconds 5 --json the same as one JSON object
    pcs_client.py SOCKET status                    the machine's status (JSON)
    pcs_client.py SOCKET processes                 the guest's threads
    pcs_client.py SOCKET check                     try every error of the pages; for tests
    pcs_client.py SOCKET malformed                 break the protocol in every way; for tests
    pcs_client.py SOCKET hold                      open pcs and block in a read, until killed

Exit status: 0 done, 1 something isn't as the pages say, 2 no connection or a request refused.
It needs Python 3.8 and nothing beside its standard library.
"""

import argparse
import errno
import json
import os
import select
import socket
import struct
import sys
import time
from collections import Counter

# WIRE.md
HELLO, OPEN, READ, WRITE, IOCTL, POLL, CANCEL, CLOSE = range(1, 9)
REPLY = 0x8000
MAGIC = b"kvmprof\0"
VERSION = 1
HEADER = struct.Struct("<IIHHI")
REPLY_HEADER = struct.Struct("<IIHHi")
LONGEST_REPLY = 16 + 4194304
PCS, PRF, STATUS, PROCESSES = 1, 2, 3, 4
NONBLOCKING = 1
READABLE, WRITABLE, HANG_UP = 1, 2, 4

# PCS.md
BUF_INCR, PROF_KERNEL, PROF_ALL, PROF_GROUP, PROF_LIST = 0x5001, 0x5002, 0x5004, 0x5008, 0x5010
PCS_FLUSH, PCS_SETFORMAT, PCS_SETBSIZE, PCS_GETHZ = 0x5081, 0x5082, 0x5083, 0x5084
PCS_SETHZ, PCS_STOP, PCS_GETSTAT = 0x5085, 0x5086, 0x5087
NATIVE, CLASSIC = 0, 1
TYPES = {1: "KERNEL", 2: "USER", 3: "IDLE", 4: "MKERNEL", 5: "MUSER", 9: "KERNELI", 10: "MKERNELI"}
SAMPLES = ("KERNEL", "KERNELI", "USER")
LEDGER = ("ticks", "recorded", "merged", "ungathered", "stolen", "lost", "pending", "discarded")
ACCOUNT = struct.Struct("<8Q6I")


class Disconnected(Exception):
    """The server closed the connection."""


class ProtocolError(Exception):
    """The server sent what the pages don't allow."""


class Connection:
    """A connection, after its hello. Requests may be sent before earlier ones are answered."""

    def __init__(self, path, hello=True):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.received = bytearray()
        self.replies = {}  # tag: (kind, errno, body)
        self.sent = {}  # tag: kind
        self.last_tag = 0
        if hello:
            self.hello()

    def hello(self, lowest=VERSION, highest=VERSION):
        """Agrees on a version; keeps the server's facts."""
        body = self.call(HELLO, 0, MAGIC + struct.pack("<HHI", lowest, highest, 0))
        if len(body) < 32:
            raise ProtocolError("short hello")
        version, low, high, _, *facts = struct.unpack_from("<4H6I", body)
        if version != VERSION and (lowest, highest) == (VERSION, VERSION):
            raise ProtocolError(f"the server speaks versions {low} to {high}, not {VERSION}")
        names = ("max_data", "max_ioctl_data", "max_outstanding", "max_handles", "vcpus", "hz")
        self.facts = dict(zip(names, facts), version=version, lowest=low, highest=high)
        return self.facts

    def send(self, kind, handle, body=b""):
        """Sends a request and returns its tag."""
        self.last_tag = (self.last_tag + 1) % 2**32
        tag = self.last_tag
        try:
            self.socket.sendall(HEADER.pack(len(body), tag, kind, 0, handle) + body)
        except (BrokenPipeError, ConnectionResetError):
            raise Disconnected() from None
        self.sent[tag] = kind
        return tag

    def receive(self):
        """Receives once; files the replies that are complete."""
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Disconnected()
        self.received += data
        while len(self.received) >= HEADER.size:
            length, tag, kind, reserved, number = REPLY_HEADER.unpack_from(self.received)
            if length > LONGEST_REPLY or reserved != 0:
                raise ProtocolError(f"a reply of {length} bytes, reserved {reserved}")
            if len(self.received) < HEADER.size + length:
                break
            body = bytes(self.received[HEADER.size : HEADER.size + length])
            del self.received[: HEADER.size + length]
            if self.sent.pop(tag, None) != kind ^ REPLY:
                raise ProtocolError(f"a reply of kind {kind:#x} that nobody waits for, tag {tag}")
            if number and body:
                raise ProtocolError("a reply with an error and a body")
            self.replies[tag] = (number, body)

    def wait(self, tag):
        """Waits for the reply to `tag` and returns its body; OSError if it is an error."""
        while tag not in self.replies:
            self.receive()
        number, body = self.replies.pop(tag)
        if number:
            raise OSError(number, os.strerror(number))
        return body

    def wait_until(self, tag, deadline):
        """True when the reply to `tag` is there; False when the deadline came first."""
        while tag not in self.replies:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                return False
            self.receive()
        return True

    def call(self, kind, handle, body=b""):
        """Sends a request and waits for its reply."""
        return self.wait(self.send(kind, handle, body))

    def open(self, device, minor=0, flags=0):
        """Opens a device."""
        (handle,) = struct.unpack("<I", self.call(OPEN, 0, struct.pack("<HHI", device, minor, flags)))
        if handle == 0:
            raise ProtocolError("handle 0")
        return Device(self, handle)

    def cancel(self, tag):
        """Takes back a read or poll that waits."""
        self.call(CANCEL, 0, struct.pack("<I", tag))

    def close(self):
        """Ends the connection."""
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Device:
    """An open device."""

    def __init__(self, connection, handle):
        self.connection = connection
        self.handle = handle

    def start_read(self, limit, flags=0):
        """Sends a read and returns its tag."""
        return self.connection.send(READ, self.handle, struct.pack("<II", limit, flags))

    def read(self, limit=65536, flags=0):
        """Reads; b"" is the end of file."""
        data = self.connection.wait(self.start_read(limit, flags))
        if len(data) > limit:
            raise ProtocolError(f"{len(data)} bytes read where {limit} were asked for")
        return data

    def read_to_end(self):
        """Reads until the end of file."""
        return b"".join(iter(self.read, b""))

    def write(self, data):
        """Writes; returns how many bytes were taken."""
        reply = self.connection.call(WRITE, self.handle, struct.pack("<I", 0) + data)
        return struct.unpack("<I", reply)[0]

    def ioctl(self, command, argument=0, data=b"", limit=0):
        """Carries out a command; returns (value, what it stored)."""
        body = struct.pack("<IIq", command, limit, argument) + data
        reply = self.connection.call(IOCTL, self.handle, body)
        return struct.unpack_from("<q", reply)[0], reply[8:]

    def poll(self, events=READABLE, flags=0):
        """Waits for events and returns those that are there."""
        body = struct.pack("<II", events, flags)
        return struct.unpack("<I", self.connection.call(POLL, self.handle, body))[0]

    def close(self):
        """Closes the device."""
        self.connection.call(CLOSE, self.handle)


def account(pcs):
    """What PCS_GETSTAT stores, as a dict."""
    _, data = pcs.ioctl(PCS_GETSTAT, limit=ACCOUNT.size)
    values = ACCOUNT.unpack_from(data)
    names = ("hz", "vcpus", "format", "bsize", "bufno", "modes")
    return dict(zip(names, values[8:]), ledger=dict(zip(LEDGER, values)))


def records(stream, form, bsize, partial_allowed):
    """Yields ("lost", n) for each header and (type, pid or count, pc) for each record."""
    header = struct.Struct("<HHI" if form == NATIVE else "<Hh")
    sample = struct.Struct("<BBHiQ" if form == NATIVE else "<BBhI")
    if len(stream) % bsize:
        raise ProtocolError(f"{len(stream)} bytes are not whole buffers")
    for start in range(0, len(stream), bsize):
        unused, *_, lost = header.unpack_from(stream, start)
        end = start + bsize - unused
        if unused >= 12 and not partial_allowed:
            raise ProtocolError(f"{unused} unused bytes")
        if (end - start - header.size) % sample.size or end < start + header.size:
            raise ProtocolError(f"a record is split: {unused} unused bytes")
        yield "lost", lost, None
        for place in range(start + header.size, end, sample.size):
            kind, _, *rest = sample.unpack_from(stream, place)
            if kind not in TYPES:
                raise ProtocolError(f"a record of type {kind}")
            number, pc = rest[-2:]
            yield TYPES[kind], number, pc


def summarise(stream, final):
    """Counts what a stream holds, and compares it with the final account."""
    types, pids, lost, in_records = Counter(), {}, 0, Counter()
    for kind, number, _ in records(stream, final["format"], final["bsize"], True):
        if kind == "lost":
            lost += number
            continue
        sampled = kind in SAMPLES
        types[kind] += 1 if sampled else number
        in_records["recorded" if sampled else "merged"] += 1 if sampled else number
        if sampled:
            pids.setdefault(number, Counter())[kind] += 1
    ledger = final["ledger"]
    faults = [
        f"{name}: {ledger[name]} in the ledger, {in_records[name]} in the records"
        for name in ("recorded", "merged")
        if ledger[name] != in_records[name]
    ]
    if ledger["ticks"] != sum(ledger[name] for name in LEDGER[1:]):
        faults.append("the ledger doesn't balance")
    if ledger["pending"]:
        faults.append(f"{ledger['pending']} ticks are pending after the end of file")
    if lost > ledger["lost"]:
        faults.append(f"{lost} samples lost by the headers, {ledger['lost']} ticks by the ledger")
    return {
        **final,
        "bytes": len(stream),
        "lost_by_headers": lost,
        "types": dict(types),
        "pids": {str(pid): dict(count) for pid, count in sorted(pids.items())},
        "faults": faults,
    }


def set_up(pcs, options):
    """The ioctls that the options ask for."""
    if options.classic:
        pcs.ioctl(PCS_SETFORMAT, CLASSIC)
    if options.bsize:
        pcs.ioctl(PCS_SETBSIZE, options.bsize)
    if options.hz:
        pcs.ioctl(PCS_SETHZ, options.hz)
    if options.buffers:
        pcs.ioctl(BUF_INCR, options.buffers)
    if options.kernel:
        pcs.ioctl(PROF_KERNEL)
    if options.pid:
        pids = struct.pack(f"<{len(options.pid) + 1}i", len(options.pid), *options.pid)
        pcs.ioctl(PROF_LIST, data=pids)
    if options.group is not None:
        pcs.ioctl(PROF_GROUP, options.group)
    if not (options.kernel or options.pid or options.group is not None):
        pcs.ioctl(PROF_ALL)


def record(options):
    """Records for some seconds and prints who used the time."""
    stream = bytearray()
    with Connection(options.socket) as connection:
        pcs = connection.open(PCS)
        set_up(pcs, options)
        if options.stall:
            time.sleep(options.stall)
        deadline = time.monotonic() + options.seconds
        stopped = False
        while True:
            tag = pcs.start_read(options.limit)
            if not stopped and not connection.wait_until(tag, deadline):
                # The read goes on waiting: the stop gives it what is left.
                pcs.ioctl(PCS_STOP)
                stopped = True
            data = connection.wait(tag)
            if not data:
                break
            stream += data
            if not stopped and time.monotonic() >= deadline:
                pcs.ioctl(PCS_STOP)
                stopped = True
        result = summarise(bytes(stream), account(pcs))
        pcs.close()
    if options.json:
        print(json.dumps(result))
    else:
        print_summary(result)
    return 1 if result["faults"] else 0


def print_summary(result):
    ledger = result["ledger"]
    total = sum(result["types"].values()) or 1
    print(f"{'type':<10}{'ticks':>10}{'share':>9}")
    for kind, count in sorted(result["types"].items(), key=lambda item: -item[1]):
        print(f"{kind:<10}{count:>10}{count / total:>9.1%}")
    print(f"\n{'pid':<10}{'user':>10}{'kernel':>10}{'interrupt':>10}")
    for pid, kinds in sorted(result["pids"].items(), key=lambda item: -sum(item[1].values())):
        counts = (kinds.get(kind, 0) for kind in ("USER", "KERNEL", "KERNELI"))
        print(f"{pid:<10}" + "".join(f"{count:>10}" for count in counts))
    parts = ", ".join(f"{name} {ledger[name]}" for name in LEDGER[1:] if ledger[name])
    print(f"\nledger: {ledger['ticks']} ticks at {result['hz']} Hz on {result['vcpus']} vCPUs: {parts}")
    for fault in result["faults"]:
        print(f"fault: {fault}", file=sys.stderr)


def snapshot(options):
    """Prints a snapshot device."""
    with Connection(options.socket) as connection:
        device = connection.open({"status": STATUS, "processes": PROCESSES}[options.command])
        text = device.read_to_end().decode(errors="replace")
    sys.stdout.write(text)
    return 0


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
    yield "prf", "ENODEV", lambda: other.open(PRF, 255)
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


def check(options):
    """Tries every error of the pages."""
    failures = 0
    with Connection(options.socket) as one, Connection(options.socket) as other:
        groups = (
            lambda: error_cases(one, other, one.open(PCS)),
            lambda: waiting_cases(one),
            lambda: limit_cases(one),
        )
        for group in groups:
            for name, expected, action in group():
                seen = outcome(action)
                failures += report(name, expected, seen)
    return 1 if failures else 0


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


def hold(options):
    """Opens pcs, says so, and blocks in a read until killed or kvmprof ends."""
    with Connection(options.socket) as connection:
        pcs = connection.open(PCS)
        if options.gather:
            pcs.ioctl(PROF_ALL)
        tag = pcs.start_read(1 << 22)
        print("open", flush=True)
        connection.wait(tag)
        while pcs.read(1 << 22):
            pass
    return 0


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("socket", help="what kvmprof was given as --socket")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="record and print who used the time")
    recording.add_argument("--seconds", type=float, default=5, metavar="N")
    recording.add_argument("--kernel", action="store_true", help="kernel ticks only")
    recording.add_argument("--pid", type=int, action="append", metavar="PID", help="up to 5 times")
    recording.add_argument("--group", type=int, metavar="PGID", help="one process group")
    recording.add_argument("--classic", action="store_true", help="the historical record format")
    recording.add_argument("--buffers", type=int, metavar="N", help="so many buffers more")
    recording.add_argument("--bsize", type=int, metavar="BYTES", help="size of a buffer")
    recording.add_argument("--hz", type=int, metavar="HZ", help="rate of the clock")
    recording.add_argument("--limit", type=int, default=65536, metavar="BYTES", help="of one read")
    recording.add_argument("--stall", type=float, metavar="N", help="read nothing for N seconds first")
    recording.add_argument("--json", action="store_true")
    recording.set_defaults(run=record)
    for name in ("status", "processes"):
        commands.add_parser(name, help=f"print the device {name}").set_defaults(run=snapshot)
    commands.add_parser("check", help="try every error of the pages").set_defaults(run=check)
    commands.add_parser("malformed", help="break the protocol").set_defaults(run=malformed)
    holding = commands.add_parser("hold", help="open pcs and block in a read")
    holding.add_argument("--gather", action="store_true", help="with PROF_ALL")
    holding.set_defaults(run=hold)
    return parser.parse_args()


def main():
    """Runs the command; its exit status."""
    options = arguments()
    try:
        return options.run(options)
    except Disconnected:
        print("pcs_client: the server closed the connection", file=sys.stderr)
    except ProtocolError as error:
        print(f"pcs_client: the server broke the protocol: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"pcs_client: {options.socket}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2


if __name__ == "__main__":
    sys.exit(main())
