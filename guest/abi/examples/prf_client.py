#!/usr/bin/env python3
"""A client of prf on kvmprof's host socket in plain Python, written from WIRE.md and PRF.md.

    prf_client.py SOCKET sample --seconds 5    in which kernel functions the guest spent its time
    prf_client.py SOCKET state                 whether the profiler is loaded and on

Exit status: 0 done, 1 something isn't as the pages say, 2 no connection or a request refused.
It needs Python 3.8, pcs_client.py beside it, and nothing but the standard library.
"""

import argparse
import struct
import sys
import time

from pcs_client import KALLSYMS, PRF, Connection, ProtocolError, main

# PRF.md
PRF_GETSTATUS, PRF_GETSIZE, PRF_SETSTATE, PRF_GETMAX = 0x4601, 0x4602, 0x4603, 0x4604
ON, LOADED = 1, 2
ALL_VCPUS = 255
WORD = 8
MAX_READ = 4194304


def number(prf, command):
    """What a command stores: an int."""
    _, data = prf.ioctl(command, limit=4)
    if len(data) != 4:
        raise ProtocolError(f"command {command:#x} stores {len(data)} bytes")
    return struct.unpack("<i", data)[0]


def table(addresses):
    """Addresses as they are written."""
    return struct.pack(f"<{len(addresses)}Q", *addresses)


def contents(prf):
    """The addresses and the counters; the last two of those are user mode and idle."""
    data = prf.read(MAX_READ)
    words = struct.unpack(f"<{len(data) // WORD}Q", data)
    addresses = (len(words) - 2) // 2
    if len(data) % WORD or len(words) != 2 * addresses + 2:
        raise ProtocolError(f"a table of {len(data)} bytes")
    return words[:addresses], words[addresses:]


def symbols(connection):
    """The guest kernel's functions: {address: name}, address 0 first."""
    text = connection.open(KALLSYMS).read_to_end().decode()
    found = {0: "below the kernel"}
    for line in text.splitlines():
        address, _, name = line.split(" ")[:3]
        found.setdefault(int(address, 16), name)
    return found


def sample(options):
    """Profiles for some seconds and prints the functions with the largest shares."""
    with Connection(options.socket) as connection:
        names = symbols(connection)
        prf = connection.open(PRF, options.minor)
        prf.ioctl(PRF_SETSTATE, 0)
        prf.write(table(sorted(names)))
        prf.ioctl(PRF_SETSTATE, ON)
        time.sleep(options.seconds)
        prf.ioctl(PRF_SETSTATE, 0)
        addresses, counters = contents(prf)
    rows = [names[address] for address in addresses] + ["user", "idle"]
    total = sum(counters)
    print(f"{total} ticks")
    for count, name in sorted(zip(counters, rows), key=lambda row: -row[0])[: options.top]:
        if count:
            print(f"{name:<40}{count:>8}{count / total:>9.1%}")
    return 0


def state(options):
    """Prints the state of a minor."""
    with Connection(options.socket) as connection:
        prf = connection.open(PRF, options.minor)
        status = number(prf, PRF_GETSTATUS)
        print("on" if status & ON else "off")
        if status & LOADED:
            print(f"{number(prf, PRF_GETSIZE)} addresses")
        print(f"{number(prf, PRF_GETMAX)} at most")
    return 0


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("socket", help="what kvmprof was given as --socket")
    commands = parser.add_subparsers(dest="command", required=True)
    sampling = commands.add_parser("sample", help="where the kernel spends its time")
    sampling.add_argument("--seconds", type=float, default=5, metavar="N")
    sampling.add_argument("--top", type=int, default=20, metavar="N", help="rows")
    sampling.set_defaults(run=sample)
    commands.add_parser("state", help="loaded and on?").set_defaults(run=state)
    for command in commands.choices.values():
        command.add_argument("--minor", type=int, default=ALL_VCPUS, metavar="VCPU", help="or 255: all")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main("prf_client", arguments()))
