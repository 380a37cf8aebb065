"""Checks that a built wheel is what we say it is.

    python wheels/audit.py [--release] WHEEL

Needs readelf, nm and objdump, which come with gcc. Prints one line for each
check; the exit status is 1 if one fails. `--release` also asks for the tag and
the glibc floor that a published wheel has.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIBRARY = "moewire/libmoewire.so"
# Folders of the package. What only measures for the documents is in none of them.
FOLDERS = {
    "_base", "_config", "_cpu", "_cuda", "_ep", "_native", "_observe", "_rendezvous", "autograd",
    "bench", "bench/native", "compat", "compat/_mooncake_store", "deep_ep", "demo", "demo/model",
    "doctor", "fabric", "integrations", "integrations/vllm", "integrations/vllm/offload", "ops",
    "store",
}  # fmt: skip
MAX_BYTES = 10 * 1000 * 1000
MAX_TLS = 256
SBOM = "moewire.cdx.json"
RELEASE_GLIBC = (2, 28)
NEEDED = {
    "libc.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "libm.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
# What a release has code for: Targets and PTXTarget of core/device/cuda/kernels.
KERNELS = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "compute_80"]
KERNELS_MAGIC = b"MOEWKRN1"
KERNELS_USER = b"core/device/cuda/images."
# Where builds happen; none of these may be readable in the library.
BUILD_PATHS = re.compile(rb"/(?:tmp|root|home|work|builds?|opt|usr/local/go)/[\w.-]{2,}")


@dataclass(frozen=True)
class Check:
    """One property: its name, what was seen, and what is wrong ("" if nothing)."""

    name: str
    seen: str
    problem: str = ""


def _tool(*command: str) -> str:
    env = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


def _check(name: str, seen: object, wrong: object, why: str) -> Check:
    return Check(name, str(seen), f"{why}: {wrong}" if wrong else "")


# ------------------------------------------------------------------ wheel --


def check_tag(wheel: Path, archive: zipfile.ZipFile, release: bool) -> Check:
    """The file name and WHEEL agree, and claim no more than they may."""
    tag = "-".join(wheel.stem.split("-")[-3:])
    platform = r"manylinux_2_28" if release else r"(?:linux|manylinux_2_28)"
    text = _metadata(archive, "WHEEL")
    wrong = []
    if not re.fullmatch(rf"py3-none-{platform}_(?:x86_64|aarch64)", tag):
        wrong.append(tag)
    if f"\nTag: {tag}\n" not in f"{text}\n":
        wrong.append("WHEEL says otherwise")
    if "Root-Is-Purelib: false" not in text:
        wrong.append("Root-Is-Purelib is not false")
    return _check("tag", tag, ", ".join(wrong), "not the tag of a wheel like this")


def _metadata(archive: zipfile.ZipFile, name: str) -> str:
    found = [n for n in archive.namelist() if re.fullmatch(rf"[^/]+\.dist-info/{name}", n)]
    return archive.read(found[0]).decode() if found else ""


def check_record(archive: zipfile.ZipFile) -> Check:
    """RECORD lists every file, with its size and hash."""
    rows = list(csv.reader(_metadata(archive, "RECORD").splitlines()))
    wrong = sorted(set(archive.namelist()) ^ {row[0] for row in rows})
    for name, digest, size in rows:
        if name.endswith("/RECORD") or name in wrong:
            continue
        data = archive.read(name)
        want = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if (digest, size) != (f"sha256={want}", str(len(data))):
            wrong.append(name)
    return _check("RECORD", f"{len(rows)} files", ", ".join(wrong), "differs from the content")


def check_files(archive: zipfile.ZipFile) -> Check:
    """The library and the typing marker are there, and nothing foreign is."""
    names = archive.namelist()
    wrong = [f"no {name}" for name in (LIBRARY, "moewire/py.typed") if name not in names]
    allowed = re.compile(r"moewire/(?:(.+)/)?[^/]+|moewire-[^/]+\.dist-info/.+")
    found = {name: allowed.fullmatch(name) for name in names}
    wrong += [
        name for name, parts in found.items() if not parts or parts[1] not in {None, *FOLDERS}
    ]
    # The copy floor is compiled where it is measured: its sources belong to the bench.
    sources = [name for name in names if not name.startswith("moewire/bench/native/")]
    wrong += [name for name in sources if re.search(r"__pycache__|\.py[co]$|\.(go|c|h|a)$", name)]
    return _check("files", f"{len(names)}", ", ".join(wrong), "should be otherwise")


def check_size(wheel: Path) -> Check:
    """The wheel stays small."""
    size = wheel.stat().st_size
    return _check("size", f"{size} bytes", size if size > MAX_BYTES else "", "too large")


def check_sbom(archive: zipfile.ZipFile) -> Check:
    """The list of materials names this wheel, this library, and each Go module that is in it."""
    try:
        found = json.loads(_metadata(archive, f"sboms/{SBOM}"))
        parts = {c["name"]: c for c in found["components"]}
        wrong = list(_sbom_problems(archive, found, parts))
    except (ValueError, KeyError, TypeError, IndexError) as err:
        return _check("SBOM", "", repr(err), "cannot be read")
    return _check("SBOM", f"{len(parts)} components", "; ".join(wrong), "is not of this wheel")


def _sbom_problems(
    archive: zipfile.ZipFile, found: dict[str, Any], parts: dict[str, Any]
) -> Iterator[str]:
    if (found["bomFormat"], found["specVersion"]) != ("CycloneDX", "1.6"):
        yield "not CycloneDX 1.6"
    own = found["metadata"]["component"]
    metadata = _metadata(archive, "METADATA")
    if (
        f"\nName: {own['name']}\n" not in metadata
        or f"\nVersion: {own['version']}\n" not in metadata
    ):
        yield f"of {own['name']} {own['version']}"
    if LIBRARY not in archive.namelist():
        return
    data = archive.read(LIBRARY)
    if parts[LIBRARY]["hashes"][0]["content"] != hashlib.sha256(data).hexdigest():
        yield f"another {LIBRARY}"
    # Go's linker writes the modules into the library.
    linked = set(re.findall(rb"\ndep\t(\S+)\t(\S+)\t(h1:[\w+/=]+)", data))
    listed = {
        (c["name"].encode(), c["version"].encode(), p["value"].encode())
        for c in parts.values()
        for p in c.get("properties", ())
        if p["name"] == "moewire:go_sum"
    }
    for module in sorted(linked ^ listed):
        name, version = module[0].decode(), module[1].decode()
        yield f"{name} {version} is {'not listed' if module in linked else 'listed, not linked'}"
    wanted = ["std", "go", "hatchling"]
    wanted += ["nvidia-cuda-nvrtc-cu12"] if prebuilt_kernels(data) else []
    yield from (f"no {name}" for name in wanted if name not in parts)
    compilers = [c for c in parts.values() if "C compiler" in str(c.get("properties"))]
    if not compilers:
        yield "no C compiler"


# ---------------------------------------------------------------- library --


def check_exports(library: str) -> Check:
    """Only mw_* functions are visible."""
    names = exported(library)
    wrong = sorted(name for name in names if not name.startswith("mw_"))
    if not names:
        wrong = ["nothing at all"]
    return _check("exports", f"{len(names)} mw_*", ", ".join(wrong), "exported too")


def exported(library: str) -> list[str]:
    """Names of the dynamic symbols that the library defines."""
    lines = _tool("nm", "-D", "--defined-only", library).splitlines()
    fields = [line.split() for line in lines]
    # Kind A is the name of the symbol version itself.
    return [f[2].split("@")[0] for f in fields if len(f) == 3 and f[1] != "A"]


def check_dynamic(library: str) -> Iterator[Check]:
    """Links with libc only, has its soname, and looks nowhere in particular."""
    text = _tool("readelf", "-dW", library)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
    yield _check("linked", " ".join(sorted(needed)), " ".join(needed - NEEDED), "not allowed")
    paths = re.findall(r"\((?:RPATH|RUNPATH)\).*", text)
    yield _check("no rpath", paths or "none", "; ".join(paths), "has")
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", text)
    bad = soname != ["libmoewire.so.0"]
    yield _check("soname", soname, soname or ["none"] if bad else "", "should be libmoewire.so.0")


def check_hardening(library: str) -> Iterator[Check]:
    """What a bug in C code must not reach: the table of foreign functions is read-only once the
    library is loaded, no memory is writable and executable, and functions with arrays guard
    their return address."""
    dynamic = _tool("readelf", "-dW", library)
    bound = re.search(r"\(BIND_NOW\)|\((?:FLAGS|FLAGS_1)\).*\b(?:BIND_NOW|NOW)\b", dynamic)
    segments = _tool("readelf", "-lW", library)
    relro = "GNU_RELRO" in segments
    have = [name for name, has in (("BIND_NOW", bound), ("GNU_RELRO", relro)) if has]
    missing = sorted({"BIND_NOW", "GNU_RELRO"} - set(have))
    yield _check("read-only after loading", " ".join(have), " ".join(missing), "lacks")
    stack = re.findall(r"^\s+GNU_STACK(?:\s+0x[0-9a-f]+){5}\s+([RWE ]{3})", segments, re.M)
    wrong = "" if stack and not any("E" in flags for flags in stack) else stack or "no GNU_STACK"
    yield _check("stack not executable", "".join(stack).strip(), wrong, "is")
    both = re.findall(r"^\s+LOAD\s.*\sRWE\s.*$", segments, re.M)
    text = re.findall(r"\(TEXTREL\)|\bTEXTREL\b", dynamic)
    wrong = " ".join([*both, *text])
    yield _check("no code that can be written", "none" if not wrong else "", wrong, "has")
    guards = "__stack_chk_fail" in _tool("nm", "-D", "--undefined-only", library)
    wrong = "" if guards else "__stack_chk_fail"
    yield _check("stack protector", "__stack_chk_fail" if guards else "", wrong, "does not use")


def check_tls(library: str) -> Check:
    """Thread-local variables are few: Go's runtime makes a library's storage for them static,
    and a process that loads the library late has little left of that."""
    sizes = re.findall(
        r"^\s+TLS(?:\s+0x[0-9a-f]+){4}\s+(0x[0-9a-f]+)", _tool("readelf", "-lW", library), re.M
    )
    size = sum(int(s, 16) for s in sizes)
    return _check(
        "thread-local storage", f"{size} bytes", size if size > MAX_TLS else "", "too large"
    )


def check_glibc(library: str, release: bool) -> Check:
    """The newest symbol version that the library asks of glibc."""
    text = _tool("readelf", "-VW", library)
    found = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+(?:\.\d+)+)", text)}
    newest = max(found, default=(0,))
    wrong = ".".join(map(str, newest)) if release and newest > RELEASE_GLIBC else ""
    return _check("glibc", ".".join(map(str, newest)), wrong, "newer than the tag allows")


def check_code(library: str) -> Iterator[Check]:
    """All vector widths are compiled in; no multiplication is fused with an addition."""
    machine = re.search(r"Machine:\s+(.*)", _tool("readelf", "-hW", library))
    arm = machine is not None and "AArch64" in machine[1]
    zmm = ymm = 0
    fused: set[str] = set()
    fuses = re.compile(r"\s(v?f(?:n?m(?:add|sub)|ml[as])\w*)\s")
    command = ["objdump", "-d", "--no-show-raw-insn", library]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dump:
        assert dump.stdout is not None
        for line in dump.stdout:
            zmm += "%zmm" in line
            ymm += "%ymm" in line
            if found := fuses.search(line):
                fused.add(found[1])
    yield _check("no fused multiply-add", "none" if not fused else "", sorted(fused) or "", "has")
    if not arm:
        yield _check("AVX-512 code", f"{zmm} zmm", "none" if zmm < 16 else "", "uses of zmm")
        yield _check("AVX2 code", f"{ymm} ymm", "none" if ymm < 16 else "", "uses of ymm")


def check_paths(library: str) -> Check:
    """Says nothing about the machine that it was built on."""
    data = Path(library).read_bytes()
    own = [str(Path(__file__).resolve().parent.parent).encode(), str(Path.home()).encode()]
    found = {m.decode("latin-1") for m in BUILD_PATHS.findall(data)}
    found |= {p.decode() for p in own if len(p) > 5 and p in data}
    return _check("no build paths", len(found), ", ".join(sorted(found)[:5]), "mentions")


def check_kernels(library: str, release: bool) -> Check:
    """A release that runs CUDA kernels has their code, for all targets."""
    data = Path(library).read_bytes()
    have = prebuilt_kernels(data)
    wrong = ""
    if release and KERNELS_USER in data and have != KERNELS:
        wrong = " ".join(have) or "none"
    return _check("CUDA kernels", " ".join(have) or "none", wrong, "not those of a release")


def prebuilt_kernels(data: bytes) -> list[str]:
    """Targets of the archive of kernels in a library; its magic alone is in the code, too."""
    for found in re.finditer(re.escape(KERNELS_MAGIC) + rb"(.{4})\{", data, re.DOTALL):
        size = int.from_bytes(found[1], "little")
        begin = found.end() - 1
        try:
            return [image["target"] for image in json.loads(data[begin : begin + size])["images"]]
        except (ValueError, KeyError, TypeError):
            continue
    return []


def check_sections(library: str) -> Check:
    """Stripped."""
    sections = re.findall(r"\s(\.[\w.]+)\s", _tool("readelf", "-SW", library))
    wrong = [s for s in sections if "debug" in s or s == ".symtab"]
    return _check("stripped", f"{len(sections)} sections", " ".join(wrong), "has")


# -------------------------------------------------------------------- all --


def audit(wheel: Path, release: bool) -> list[Check]:
    """Every check of a wheel, in order."""
    checks = audit_archive(wheel, release)
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        if LIBRARY in archive.namelist():
            checks += audit_library(archive.extract(LIBRARY, scratch), release)
    return checks


def audit_archive(wheel: Path, release: bool) -> list[Check]:
    """The checks of the wheel as an archive."""
    with zipfile.ZipFile(wheel) as archive:
        return [
            check_size(wheel),
            check_tag(wheel, archive, release),
            check_record(archive),
            check_files(archive),
            check_sbom(archive),
        ]


def audit_library(library: str, release: bool) -> list[Check]:
    """The checks of the library alone."""
    return [
        check_exports(library),
        *check_dynamic(library),
        *check_hardening(library),
        check_tls(library),
        check_glibc(library, release),
        *check_code(library),
        check_paths(library),
        check_kernels(library, release),
        check_sections(library),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", action="store_true")
    parser.add_argument("wheel", type=Path)
    args = parser.parse_args()
    checks = audit(args.wheel, args.release)
    for check in checks:
        mark = "FAIL" if check.problem else "ok"
        print(f"{mark:5}{check.name}: {check.problem or check.seen}")
    return int(any(check.problem for check in checks))


if __name__ == "__main__":
    sys.exit(main())
