"""A buffer or fabric that is not made leaves no key in the memory of its process."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# Makes what it is told to, says how that went, and ends with its input.
PROGRAM = """
import sys
from ctypes import byref
from moewire import _abi as abi
from moewire._native.lib import fill, library
from moewire.fabric import Fabric

what, listen, keys = sys.argv[1], sys.argv[2], sys.stdin.readline().strip()
lib = library()
try:
    if what == "fabric":
        made = Fabric(carrier="tcp", keys=keys, listen=listen)
    else:
        config = abi.mw_config_t(abi.SIZE_OF[abi.mw_config_t], num_ranks=2)
        fields = {"keys": keys.encode(), "listen": listen.encode(), "host": b"a"}
        texts = fill(config, fields)
        made = abi.mw_buffer_t()
        lib.check(lib.buffer_create(byref(config), byref(made)))
    print("made", flush=True)
except Exception as error:
    print(f"not made: {error}".splitlines()[0], flush=True)
sys.stdin.readline()
"""


@contextmanager
def process(what: str, listen: str, keys: str) -> Iterator[tuple[int, str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, what, listen],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(keys + "\n")
        child.stdin.flush()
        yield child.pid, child.stdout.readline().strip()
    finally:
        child.communicate("\n", timeout=30)


def copies(pid: int, needle: bytes) -> int:
    """How often it lies in the memory that a process can write."""
    found = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw.. \S+ \S+ (\d+)", line)
            if match is None:
                continue
            begin, end = int(match[1], 16), int(match[2], 16)
            memory.seek(begin)
            while begin < end:
                piece = memory.read(min(end - begin, 1 << 24))
                found += piece.count(needle)
                begin += len(piece)
    return found


@pytest.mark.parametrize(
    ("what", "here", "nowhere"),
    [("buffer", "127.0.0.1", "no interface"), ("fabric", "127.0.0.1:0", "nowhere")],
)
def test_what_is_not_made_keeps_no_key(what: str, here: str, nowhere: str) -> None:
    """The key's bytes are found where the buffer is made, and not where it is refused."""
    for listen, said, number in ((here, "made", 1), (nowhere, "not made", 0)):
        key = secrets.token_bytes(32)
        with process(what, listen, f"1 {key.hex()}") as (pid, answer):
            assert answer.startswith(said) and ("listen" in answer) == (number == 0), answer
            assert copies(pid, key) == number, (what, listen)
