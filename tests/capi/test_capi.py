"""The C ABI, from C: compiled strictly, run under the address and undefined-behaviour sanitizers.

The programs run against the library as it is shipped, and against one in which the library's own
C code, shim and kernels, is under the address sanitizer too.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
INCLUDE = ROOT / "capi" / "include"
HEADERS = ["moewire.h", "moewire_fabric.h", "moewire_store.h", "moewire_routing.h"]
STRICT = ["-Wall", "-Wextra", "-Werror", "-Wpedantic", "-Wshadow", "-Wstrict-prototypes"]
SANITIZE = ["-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
SANITIZE += ["-fno-sanitize-recover=all"]


def run(command: list[str | Path], timeout: float = 240, **env: str) -> str:
    """Runs a command that must succeed; its output."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="session")
def library() -> Path:
    """The library under test: as MOEWIRE_LIBRARY says, or as built into the tree."""
    path = Path(os.environ.get("MOEWIRE_LIBRARY") or ROOT / "python/moewire/libmoewire.so")
    assert path.is_file(), f"{path} is missing: run `make lib`"
    return path.resolve()


def build(source: str, tmp_path: Path, library: Path | None, *flags: str) -> Path:
    """Compiles one program, linked with the library under its soname."""
    program = tmp_path / Path(source).stem
    command: list[str | Path] = [os.environ.get("CC", "gcc"), "-std=c11", "-D_GNU_SOURCE"]
    command += [*STRICT, *flags, "-pthread", f"-I{INCLUDE}", HERE / source, "-o", program]
    if library is not None:
        link = tmp_path / "libmoewire.so.0"
        link.symlink_to(library)
        command += [link, f"-Wl,-rpath,{tmp_path}"]
    run(command)
    return program


def run_sanitized(program: Path, *args: str, timeout: float = 240) -> str:
    # Go's runtime keeps threads and memory until the process ends, which is not a leak.
    return run(
        [program, *args],
        timeout,
        ASAN_OPTIONS="abort_on_error=0:detect_leaks=0:detect_stack_use_after_return=1",
        UBSAN_OPTIONS="print_stacktrace=1",
    )


def cxx() -> list[str | Path]:
    """A C++ compiler: the machine's, or the one that builds the release wheel."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    return [found] if found else [sys.executable, "-m", "ziglang", "c++"]


@pytest.mark.parametrize("standard", ["c11", "c17", "gnu11"])
@pytest.mark.parametrize("header", HEADERS)
def test_header_alone_as_c(header: str, standard: str, tmp_path: Path) -> None:
    source = tmp_path / "header.c"
    source.write_text(f'#include "{header}"\n#include "{header}"\ntypedef int nothing;\n')
    flags = ["-Wall", "-Wextra", "-Werror", "-Wpedantic", "-fsyntax-only", f"-I{INCLUDE}"]
    run([os.environ.get("CC", "gcc"), f"-std={standard}", *flags, source])


@pytest.mark.parametrize("standard", ["c++11", "c++20"])
@pytest.mark.parametrize("header", HEADERS)
def test_header_alone_as_cxx(header: str, standard: str, tmp_path: Path) -> None:
    source = tmp_path / "header.cpp"
    source.write_text(f'#include "{header}"\n#include "{header}"\nmw_config_t config;\n')
    flags = ["-Wall", "-Wextra", "-Werror", "-Wpedantic", f"-I{INCLUDE}", "-c"]
    run([*cxx(), f"-std={standard}", *flags, source, "-o", tmp_path / "header.o"])


@pytest.fixture(scope="session")
def asan_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with its C code under the address sanitizer; compiled without a warning."""
    path = tmp_path_factory.mktemp("asan") / "libmoewire.so"
    command = ["go", "build", "-C", ROOT, "-buildvcs=false", "-asan", "-buildmode=c-shared"]
    # Both cgo packages ask for -Wall -Wextra. -Werror would hit Go's own C code as well.
    said = run([*command, "-o", path, "./capi"], CGO_ENABLED="1", CGO_CFLAGS="-g -O1")
    assert "warning" not in said, said
    return path


@pytest.fixture(params=["as shipped", pytest.param("sanitized", marks=pytest.mark.all)])
def either_library(request: pytest.FixtureRequest, library: Path) -> Path:
    """The library as users get it, and one that has its own C code checked as well."""
    if request.param == "as shipped":
        return library
    path: Path = request.getfixturevalue("asan_library")
    return path


PROGRAMS = [
    "bad_input.c",
    "fabric.c",
    "fabric_bad.c",
    "flat.c",
    "held.c",
    "late.c",
    "routing.c",
    "store.c",
    "pre_reduce.c",
    "threads.c",
    "fp32_outputs.c",
]


@pytest.mark.parametrize("source", PROGRAMS)
def test_program(source: str, tmp_path: Path, either_library: Path) -> None:
    program = build(source, tmp_path, either_library, *SANITIZE)
    assert f"{Path(source).stem}: ok" in run_sanitized(program)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_ranks(num_ranks: int, tmp_path: Path, either_library: Path) -> None:
    program = build("ranks.c", tmp_path, either_library, *SANITIZE)
    for seed in (1, 2):
        assert "ranks: ok" in run_sanitized(program, str(num_ranks), str(seed))


@pytest.mark.all
def test_ranks_of_other_hosts_on_cuda(tmp_path: Path, library: Path) -> None:
    """Two processes over the emulated driver; sanitizers cannot follow its fibres."""
    sys.path.insert(0, str(HERE.parent / "python"))
    from harness import emulator

    program = build("cuda_hosts.c", tmp_path, library, "-g", "-O1")
    commands = [[program, rank, tmp_path, emulator.driver()] for rank in range(2)]
    ranks = [Said(command, tmp_path / f"said-{rank}") for rank, command in enumerate(commands)]
    together(ranks, timeout=400)
    assert all("cuda_hosts: ok" in one.text() for one in ranks), texts(ranks)


class Said:
    """A process, with its output in a file: it never blocks because no process reads the output."""

    def __init__(self, command: list[Any], path: Path) -> None:
        self.path = path
        with path.open("w") as file:
            words = [str(word) for word in command]
            self.process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)

    def text(self) -> str:
        return self.path.read_text(errors="replace")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def texts(ranks: list[Said]) -> str:
    """All outputs and exit codes: the process that waits may not be the one that failed."""
    return "\n".join(
        f"--- rank {rank}, returned {one.process.poll()}:\n{one.text()}"
        for rank, one in enumerate(ranks)
    )


def together(ranks: list[Said], timeout: float) -> None:
    """Waits until all have succeeded, or one has failed: the others would wait for it."""
    until = time.monotonic() + timeout
    try:
        codes: list[int | None] = [None]
        while None in codes and not any(codes):
            assert time.monotonic() < until, f"{timeout} s have passed\n{texts(ranks)}"
            time.sleep(0.02)
            codes = [one.process.poll() for one in ranks]
        assert not any(codes), texts(ranks)
    finally:
        for one in ranks:
            one.end()


def test_a_dead_rank_is_heard(tmp_path: Path) -> None:
    """The failure shows its output at once, although another process waits for it."""
    asleep = [sys.executable, "-c", "import time; print('asleep', flush=True); time.sleep(3600)"]
    dead = [sys.executable, "-c", "raise SystemExit('a defect')"]
    ranks = [Said(asleep, tmp_path / "0"), Said(dead, tmp_path / "1")]
    with pytest.raises(AssertionError, match=r"returned 1:\s+a defect"):
        together(ranks, timeout=3600)
    late = [Said(asleep, tmp_path / "2"), Said(asleep, tmp_path / "3")]
    with pytest.raises(AssertionError, match=r"(?s)0 s have passed.*rank 0, .*rank 1, "):
        together(late, timeout=0)


# Seeds that are kept, one of them new in every run; a long run sets the seconds.
FUZZ_SEEDS = [1, 4, 78, random.SystemRandom().randrange(1 << 31)]
FUZZ_SECONDS = int(os.environ.get("MOEWIRE_FUZZ_SECONDS", "2"))


@pytest.mark.all
@pytest.mark.fuzz
def test_any_arguments(tmp_path: Path, either_library: Path) -> None:
    """Mutated arguments for every function: see fuzz.c. A failure names its seed."""
    program = build("fuzz.c", tmp_path, either_library, *SANITIZE)
    for seed in FUZZ_SEEDS:
        text = run_sanitized(program, str(seed), str(FUZZ_SECONDS), timeout=60 + FUZZ_SECONDS)
        assert re.search(r"fuzz: ok, \d+ calls", text), text


def test_any_arguments_calls_everything() -> None:
    """A function that is added to the header must be added to fuzz.c, too."""
    called = "".join(file.read_text() for file in sorted(HERE.glob("fuzz*.[ch]")))
    declared = re.findall(r"\b(mw_\w+)\s*\([^;]*?\);", header_text())
    assert [name for name in declared if f"{name}(" not in called] == []


def test_sanitizer_is_awake(tmp_path: Path) -> None:
    """A program that reads past its memory must not pass."""
    source = tmp_path / "bad.c"
    source.write_text(
        "#include <stdlib.h>\n"
        "int main(int argc, char **argv) { (void)argv; volatile char *p = malloc(4);\n"
        "return p[argc * 4]; }\n"
    )
    program = tmp_path / "bad"
    run([os.environ.get("CC", "gcc"), *SANITIZE, source, "-o", program])
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode != 0
    assert re.search("heap-buffer-overflow|insufficient space", done.stderr)


# ------------------------------------------------------- header == _abi.py --


def probe() -> str:
    """A program that prints, as JSON, what a C compiler makes of all names in ``_abi``."""
    from moewire import _abi

    values = [*_abi.CONSTANTS]
    for name, kind in _abi.STRUCTS.items():
        values += [f"sizeof({name})", *(f"offsetof({name}, {f[0]})" for f in kind._fields_)]
    lines = [f'printf(",\\n\\"{v}\\": %lld", (long long)({v}));' for v in values]
    return (
        "#include <stddef.h>\n#include <stdio.h>\n"
        + "".join(f'#include "{header}"\n' for header in HEADERS)
        + 'int main(void) { printf("{\\"\\": 0");\n'
        + "\n".join(lines)
        + '\nprintf("}"); return 0; }\n'
    )


def header_text() -> str:
    text = "".join((INCLUDE / header).read_text() for header in HEADERS)
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)


def test_python_values_match(tmp_path: Path) -> None:
    """Every size, offset and constant is what the C compiler says."""
    import ctypes

    from moewire import _abi

    source = tmp_path / "probe.c"
    source.write_text(probe())
    said: dict[str, int] = json.loads(run([build(str(source), tmp_path, None)]))
    ours = {"": 0, **_abi.CONSTANTS}
    for name, kind in _abi.STRUCTS.items():
        ours[f"sizeof({name})"] = ctypes.sizeof(kind)
        ours |= {f"offsetof({name}, {f[0]})": getattr(kind, f[0]).offset for f in kind._fields_}
    said["MW_STREAM_NONE"] %= 1 << 64  # printed as signed
    assert ours == said


def test_python_has_all_names() -> None:
    """The generator reads the headers by their form; this counts names alone."""
    from moewire import _abi

    assert set(_abi.CONSTANTS) == set(
        re.findall(r"^#define (MW_\w+) ", header_text(), re.MULTILINE)
    )
    assert set(_abi.STRUCTS) == set(
        re.findall(r"^(?:typedef struct.*)?\} *(mw_\w+);", header_text(), re.MULTILINE)
    )


def test_python_functions_match() -> None:
    """Each function of the header exists in Python, with as many arguments."""
    from moewire import _abi

    declared = {
        name: 0 if args.strip() == "void" else args.count(",") + 1
        for name, args in re.findall(r"\b(mw_\w+)\s*\(([^;]*?)\);", header_text())
    }
    assert {name: len(args) for name, (_, args) in _abi.SIGNATURES.items()} == declared


# ----------------------------------------------------------------- example --


def check_example(text: str) -> None:
    lines = [line for line in text.splitlines() if line.startswith("rank ")]
    assert sorted(line.split(":")[0] for line in lines) == ["rank 0", "rank 1"], text
    rows = [int(re.findall(r"(\d+) rows", line)[0]) for line in lines]
    # Every selection is a row: no token here chooses one expert twice.
    assert sum(rows) == 2 * 6 * 2, text
    assert all("all sums correct" in line for line in lines), text
    assert re.search(r"^moewire \S+: ok$", text, re.MULTILINE), text


def test_example(tmp_path: Path, library: Path) -> None:
    """examples/c as its Makefile builds it: two processes, a checked result."""
    command = ["make", "-s", "-C", ROOT / "examples/c", f"OUT={tmp_path}", f"LIBRARY={library}"]
    check_example(run([*command, "CFLAGS=-O2 -Wall -Wextra -Werror", "run"]))


def test_example_as_the_readme_says(tmp_path: Path, library: Path) -> None:
    """The README's own command, in a copy of what it reads."""
    command = re.findall(
        r"`make lib && (make -C examples/c \S+)`", (ROOT / "README.md").read_text()
    )
    assert len(command) == 1, command
    shutil.copytree(ROOT / "capi/include", tmp_path / "capi/include")
    (tmp_path / "examples/c").mkdir(parents=True)
    for name in ("Makefile", "two_ranks.c"):
        shutil.copy(ROOT / "examples/c" / name, tmp_path / "examples/c")
    (tmp_path / "python/moewire").mkdir(parents=True)
    (tmp_path / "python/moewire/libmoewire.so").symlink_to(library)
    check_example(run(["sh", "-c", f"cd '{tmp_path}' && {command[0]}"]))


def test_example_under_sanitizers(tmp_path: Path, library: Path) -> None:
    program = build("../../examples/c/two_ranks.c", tmp_path, library, *SANITIZE)
    assert ": ok" in run_sanitized(program)
