#!/usr/bin/env python3
"""A client of kvmprof's host socket in plain Python, written from WIRE.md and PCS.md.

    pcs_client.py SOCKET record --seconds 5        who used the time: counts by type and pid
    pcs_client.py SOCKET record --seconds 5 --json the same as one JSON object
    pcs_client.py SOCKET status                    the machine's status (JSON)
    pcs_client.py SOCKET processes                 the guest's threads
    pcs_client.py SOCKET kallsyms                  the functions of the guest's kernel
    pcs_client.py SOCKET hold                      open pcs and block in a read, until killed

Exit status: 0 done, 1 something isn't as the pages say, 2 no connection or a request refused.
It needs Python 3.8 and nothing beside its standard library.
"""

import argparse
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
PCS, PRF, STATUS, PROCESSES, KALLSYMS = 1, 2, 3, 4, 5
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

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.received = bytearray()
        self.replies = {}  # tag: (kind, errno, body)
        self.sent = {}  # tag: kind
        self.last_tag = 0
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
    if lost != ledger["lost"]:
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
        devices = {"status": STATUS, "processes": PROCESSES, "kallsyms": KALLSYMS}
        device = connection.open(devices[options.command])
        text = device.read_to_end().decode(errors="replace")
    sys.stdout.write(text)
    return 0


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
    for name in ("status", "processes", "kallsyms"):
        commands.add_parser(name, help=f"print the device {name}").set_defaults(run=snapshot)
    holding = commands.add_parser("hold", help="open pcs and block in a read")
    holding.add_argument("--gather", action="store_true", help="with PROF_ALL")
    holding.set_defaults(run=hold)
    return parser.parse_args()


def main(name, options):
    """Runs the command of the options; its exit status."""
    try:
        return options.run(options)
    except Disconnected:
        print(f"{name}: the server closed the connection", file=sys.stderr)
    except ProtocolError as error:
        print(f"{name}: the server broke the protocol: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{name}: {options.socket}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2


if __name__ == "__main__":
    sys.exit(main("pcs_client", arguments()))
