"""``moewire store key``: one more key for a server, and what its holder may do."""

from __future__ import annotations

import argparse
import errno
import os
import re
import secrets
from contextlib import suppress
from io import RawIOBase

from .._base.numbers import refuse
from ..errors import InvalidArgument
from ._serve import size_of, write_key

_SALT = re.compile(r"[!-~]*")  # one word of a line
_MAX_ID = (1 << 32) - 1
# What a server reads at most (docs/hosts.md).
_MAX_NUM_KEYS, _MAX_FILE_BYTES, _MAX_QUOTA_BYTES = 256, 1 << 16, (1 << 63) - 1


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--add-to", required=True, metavar="FILE", help="the server's key file")
    parser.add_argument(
        "--new-key", required=True, metavar="FILE", help="make the client's key file there"
    )
    parser.add_argument("--read", action="store_true", help="it may read, and change nothing")
    parser.add_argument(
        "--salt",
        action="append",
        default=[],
        help="it may open namespaces of this salt alone; may be given several times",
    )
    parser.add_argument(
        "--quota", metavar="SIZE", help="what the namespaces of each --salt may take, such as 10GiB"
    )


def main(options: argparse.Namespace) -> int:
    """Adds a key to a server's file and writes the client's. The server reads it at SIGHUP."""
    words = _words(options)
    number, secret = _next_id(options.add_to), secrets.token_hex(32)
    write_key(options.new_key, f"{number} {secret}\n")
    try:
        _append(options.add_to, " ".join([str(number), secret, *words]))
    except BaseException:
        with suppress(OSError):
            os.unlink(options.new_key)
        raise
    print(f"key {number} was added to {options.add_to}: send the server SIGHUP, then give out")
    print(f"export MOEWIRE_KEY_FILE={os.path.abspath(options.new_key)}")
    return 0


def _words(options: argparse.Namespace) -> list[str]:
    for salt in options.salt:
        if not _SALT.fullmatch(salt) or "#" in salt or ";" in salt:
            raise refuse("--salt", repr(salt), "ASCII without blanks, # and ;")
    words = ["read"] if options.read else []
    words += [f"salt={salt}" for salt in options.salt]
    if options.quota is not None:
        if not options.salt:
            raise refuse("--quota", "no --salt", "--quota together with --salt")
        if not 1 <= (quota := size_of(options.quota, "--quota")) <= _MAX_QUOTA_BYTES:
            raise refuse("--quota", repr(options.quota), "a byte to 2^63 - 1 bytes")
        words.append(f"quota={quota}")
    return words


def _next_id(path: str) -> int:
    """A number that no key of the file has."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError as error:
        raise InvalidArgument(f"--add-to: {path}: {error.strerror}") from None
    numbers = [int(fields[0]) for fields in lines if fields and fields[0].isdecimal()]
    if not numbers:
        raise refuse("--add-to", f"{path} without a key", "a file of moewire store serve --new-key")
    if len(numbers) >= _MAX_NUM_KEYS:
        raise refuse("--add-to", f"{path} with {len(numbers)} keys", f"below {_MAX_NUM_KEYS}")
    if max(numbers) >= _MAX_ID:
        raise refuse("--add-to", f"key {max(numbers)} in {path}", f"ids below {_MAX_ID}")
    return max(numbers) + 1


def _append(path: str, line: str) -> None:
    """Adds a line to a file that stays the one that it is, with its owner and mode."""
    try:
        with open(path, "rb+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            begin = b"" if file.read(1) in (b"\n", b"") else b"\n"
            added = begin + line.encode() + b"\n"
            if end + len(added) > _MAX_FILE_BYTES:
                raise refuse("--add-to", f"{path} with {end} bytes", f"{_MAX_FILE_BYTES} in all")
            _write(file, added, end)
    except OSError as error:
        raise InvalidArgument(f"--add-to: {path}: {error.strerror}") from None


def _write(file: RawIOBase, added: bytes, end: int) -> None:
    """Writes all behind the end, or nothing: a server refuses a file with a part of a line."""
    try:
        if file.write(added) != len(added):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(end)
        raise
