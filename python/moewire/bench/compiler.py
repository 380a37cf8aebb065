"""C compiled where it is measured, for its processor, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).with_name("native")
# No fused products and sums: the results are compared bit by bit.
_FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra")
# Refused by some compilers; then the code is compiled for any processor.
_NATIVE = ("-march=native",)
_NATIVE_X86 = (*_NATIVE, "-mprefer-vector-width=512")


class CompileError(Exception):
    """There is no compiler, or it failed; the text says which."""


def cache_folder() -> Path:
    """Where the benchmark keeps what it built and installed."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "moewire" / "bench"


def system_compiler() -> list[str]:
    """The command of the machine's C compiler; ``CC`` names another."""
    named = shlex.split(os.environ.get("CC", ""))
    found = next(filter(shutil.which, (*named[:1], "cc", "gcc", "clang")), None)
    if found is None:
        raise CompileError("no C compiler: neither cc, gcc nor clang is in PATH, CC names none")
    return named if named and found == named[0] else [found]


def library(source: Path, *flags: str) -> Path:
    """A shared library made of a file by the machine's compiler."""
    return build(source, system_compiler(), ["-shared", "-fPIC", *flags])


def build(source: Path, command: Sequence[str], kind: Sequence[str]) -> Path:
    """Compiles a file with ``kind`` (flags); compiles only what is new."""
    target = cache_folder() / f"{source.stem}-{_digest(source, command, kind)}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _compile(source, target, [*command, *_FLAGS, f"-I{SOURCES}", *kind])
    return target


def _digest(source: Path, command: Sequence[str], kind: Sequence[str]) -> str:
    files = [source, *sorted(SOURCES.glob("*.h"))]
    parts = [file.read_text() for file in files]
    parts += [*command, *kind, *_FLAGS, platform.machine(), _processor_flags()]
    parts.append(_output([*command, "--version"]))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor_flags() -> str:
    """A cache may be shared by machines; native code is not."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return ""


def _compile(source: Path, target: Path, command: list[str]) -> None:
    native = _NATIVE_X86 if platform.machine() == "x86_64" else _NATIVE
    # Renamed into place: another process may be looking for the same file.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = str(Path(folder) / target.name)
        for extra in (native, ()):
            words = [*command, *extra, str(source), "-o", made]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                os.replace(made, target)
                return
    raise CompileError(f"{shlex.join(words)} failed: {done.stderr.strip()}")


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise CompileError(f"cannot start {shlex.join(command)}: {error}") from error
