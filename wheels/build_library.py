"""Builds libmoewire.so: which tools to use, and the one command line.

Used by the wheel's hook (hatch_build.py) and, as a script, by `make lib`.
It needs nothing beyond Python's standard library, and Linux.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def sibling(name: str) -> Any:
    """A module beside this file, which is loaded by its path, without its folder on sys.path."""
    full = f"moewire_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


toolchain = sibling("toolchain")

LIBRARY = "libmoewire.so"
SONAME = "libmoewire.so.0"

# A release runs on every glibc from this one on; zig links against its stubs.
RELEASE_GLIBC = (2, 28)
# What a write past the end of a C array, or through a wild pointer, is not to reach: the return
# address, and the table of functions of other libraries. audit.py looks for their effects.
HARDEN = ["-fstack-protector-strong"]
HARDEN_LINK = ["-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"]

# The kernels' code, as build_kernels.py leaves it, and where the library's sources have it.
KERNELS = ROOT / "build" / "kernels" / "kernels.bin"
KERNELS_MAGIC = b"MOEWKRN1"
_KERNELS_IN_TREE = ROOT / "core" / "device" / "cuda" / "images" / "prebuilt" / "kernels.bin"
_KERNELS_SOURCES = ROOT / "core" / "device" / "cuda" / "kernels"

# Linux machine name -> (GOARCH, zig's architecture).
_MACHINES = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "aarch64")}

Which = Callable[[str], str | None]
Packaged = Callable[[Any], Any]
GoVersion = Callable[[str], tuple[int, int] | None]


@dataclass(frozen=True)
class Plan:
    """What a build will use. None means: comes from a build requirement."""

    go: str | None  # of the machine; None: that of the package
    compiler: str | None  # as for CC; None: zig
    release: bool
    machine: str

    @property
    def requirements(self) -> list[str]:
        """Packages that the build needs besides those in pyproject.toml."""
        found = []
        if self.go is None:
            found.append(toolchain.GO.requirement)
        if self.compiler is None:
            found.append(toolchain.ZIG.requirement)
        return found

    @property
    def tag(self) -> str:
        """The wheel's tag. Only zig's result may claim an old glibc."""
        if self.release:
            return f"py3-none-manylinux_{RELEASE_GLIBC[0]}_{RELEASE_GLIBC[1]}_{self.machine}"
        return f"py3-none-linux_{self.machine}"


class BuildError(RuntimeError):
    """The library cannot be built here; the text says what is missing."""


def needed_go(go_mod: str) -> tuple[int, int]:
    """The Go version that a go.mod file asks for."""
    match = re.search(r"^go (\d+)\.(\d+)", go_mod, re.MULTILINE)
    if match is None:
        raise BuildError("go.mod has no line such as 'go 1.26'")
    return int(match[1]), int(match[2])


def go_version(go: str) -> tuple[int, int] | None:
    """The version of a go command, None if it does not run or says nothing."""
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        out = subprocess.run(
            [go, "env", "GOVERSION"], capture_output=True, text=True, env=env, check=True, cwd="/"
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.match(r"go(\d+)\.(\d+)", out)
    return (int(match[1]), int(match[2])) if match else None


def make_plan(
    env: Mapping[str, str],
    which: Which = shutil.which,
    version_of: GoVersion = go_version,
    go_mod: str | None = None,
    machine: str | None = None,
    packaged: Packaged = toolchain.installed,
) -> Plan:
    """Decides what to build with: the machine's own tools where they suffice.

    Where the pinned package of Go is installed, that one: the command `go` on PATH may be its
    script, which would run before the package has been checked.
    """
    machine = machine or platform.machine()
    if sys.platform != "linux" or machine not in _MACHINES:
        raise BuildError(
            f"Moewire builds on Linux on {' or '.join(_MACHINES)}, not on {sys.platform} {machine}"
        )
    if go_mod is None:
        go_mod = (ROOT / "go.mod").read_text()
    go = None if packaged(toolchain.GO) is not None else which("go")
    if go is not None:
        have = version_of(go)
        if have is None or have < needed_go(go_mod):
            go = None
    release = env.get("MOEWIRE_RELEASE", "") not in ("", "0")
    compiler = None
    if not release:
        compiler = env.get("CC") or next((c for c in ("gcc", "clang", "cc") if which(c)), None)
    return Plan(go, compiler, release, machine)


def _packaged(package: Any, machine: str, otherwise: str) -> str:
    """The checked program of a package that the build was to bring."""
    try:
        found = toolchain.checked_program(package, machine)
    except toolchain.ToolchainError as err:
        raise BuildError(str(err)) from err
    if found is None:
        raise BuildError(f"{otherwise}, or run: pip install {package.requirement}")
    return str(found)


def compiler_command(plan: Plan) -> str:
    """The value of CC."""
    if plan.compiler is not None:
        return plan.compiler
    zig = _packaged(toolchain.ZIG, plan.machine, "no C compiler: install gcc")
    glibc = ".".join(map(str, RELEASE_GLIBC))
    return f"{_quote(zig)} cc -target {_MACHINES[plan.machine][1]}-linux-gnu.{glibc}"


def go_command(plan: Plan) -> str:
    """The go program that builds."""
    if plan.go is not None:
        return plan.go
    want = needed_go((ROOT / "go.mod").read_text())
    missing = f"no Go {want[0]}.{want[1]} or newer on PATH: install it"
    return _packaged(toolchain.GO, plan.machine, missing)


def build_env(plan: Plan, env: Mapping[str, str], scratch: str, cc: str) -> dict[str, str]:
    """The environment of `go build`: the caller's, less what changes the result."""
    goarch = _MACHINES[plan.machine][0]
    result = {k: v for k, v in env.items() if not k.startswith("CGO_") and k != "GOFLAGS"}
    if plan.go is None:
        result.pop("GOROOT", None)  # that of another Go
    result |= {
        "CGO_ENABLED": "1",
        "GOTOOLCHAIN": "local",
        "GOOS": "linux",
        "GOARCH": goarch,
        "GOWORK": "off",
        "CGO_CFLAGS": f"-O2 -g0 {' '.join(HARDEN)}",
        "CGO_LDFLAGS": "-O2",
        "CC": cc,
    }
    if goarch == "amd64":
        result["GOAMD64"] = "v1"  # vector code is chosen at run time
    if not env.get("HOME"):
        # A build under `env -i` has no place for caches.
        for name in ("GOCACHE", "GOPATH", "ZIG_GLOBAL_CACHE_DIR"):
            result.setdefault(name, os.path.join(scratch, name.lower()))
        result.setdefault("GOFLAGS", "-modcacherw")
    return result


def find_kernels(env: Mapping[str, str], release: bool) -> Path | None:
    """The archive of prebuilt CUDA kernels that goes into the library; None: it gets none.

    MOEWIRE_KERNELS names it, or is "none". A release has the one that `make kernels` makes.
    """
    named = env.get("MOEWIRE_KERNELS", "")
    if named == "none" or (not named and not release):
        return None
    path = Path(named) if named else KERNELS
    if not path.is_file():
        raise BuildError(
            f"no {path}: run `make kernels`, or set MOEWIRE_KERNELS=none for a library without"
            " prebuilt CUDA kernels"
        )
    have, want = str(kernels_header(path.read_bytes())["source"]), kernels_digest()
    if have.split("-")[0] != want:
        raise BuildError(
            f"{path} was made of other kernels ({have[:12]}) than these ({want[:12]}):"
            " run `make kernels` again"
        )
    return path.resolve()


def kernels_header(archive: bytes) -> dict[str, Any]:
    """What an archive of kernels says of itself: `source`, and the target of each of `images`."""
    at = len(KERNELS_MAGIC)
    size = int.from_bytes(archive[at : at + 4], "little")
    try:
        if not archive.startswith(KERNELS_MAGIC) or size > 1 << 16:
            raise ValueError("it does not begin like one")
        header: dict[str, Any] = json.loads(archive[at + 4 : at + 4 + size])
    except ValueError as err:
        raise BuildError(f"no archive of kernels: {err}") from err
    return header


def kernels_digest() -> str:
    """The digest of the kernels' sources, as Digest of core/device/cuda/kernels begins."""
    digest = hashlib.sha256()
    for file in sorted(_KERNELS_SOURCES.glob("*.cu*"), key=lambda file: file.name):
        data = file.read_bytes()
        digest.update(f"{file.name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _quote(path: str) -> str:
    """Quotes a path as Go's CC and -ldflags want it, which know no escapes."""
    if not re.search(r"""[\s'"]""", path):
        return path
    if '"' in path:
        raise BuildError(f"a path with a double quote cannot be passed to the Go linker: {path}")
    return f'"{path}"'


def link_flags(version: str) -> str:
    """The value of -ldflags. The version script leaves only mw_* visible."""
    script = _quote(f"-Wl,--version-script={ROOT / 'capi' / 'exports.map'}")
    flags = " ".join([script, f"-Wl,-soname,{SONAME}", *HARDEN_LINK])
    return f"-s -w -buildid= -X main.version={version} '-extldflags={flags}'"


def build(plan: Plan, version: str, out: Path, instead: Mapping[Path, Path] | None = None) -> Path:
    """Builds the library and puts it at `out` in one step.

    `instead` has files to read in place of those of the tree.

    A process that has the old file mapped keeps it: it is replaced, never
    written to.
    """
    go, cc = go_command(plan), compiler_command(plan)
    kernels = find_kernels(os.environ, plan.release)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="moewire-build-") as scratch:
        fresh = Path(scratch) / LIBRARY
        command = [go, "build", "-mod=readonly", "-trimpath", "-buildvcs=false"]
        command += ["-tags=netgo"]  # package net would link the resolver of the C library
        command += ["-buildmode=c-shared", f"-ldflags={link_flags(version)}"]
        replace = {str(of): str(by) for of, by in (instead or {}).items()}
        if kernels is not None:
            replace[str(_KERNELS_IN_TREE)] = str(kernels)
        if replace:
            overlay = Path(scratch) / "overlay.json"
            overlay.write_text(json.dumps({"Replace": replace}))
            command.append(f"-overlay={overlay}")
        command += ["-o", str(fresh), "./capi"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=build_env(plan, os.environ, scratch, cc),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode != 0:
            raise BuildError(f"{shlex.join(command)}\n{done.stdout}")
        beside = out.with_name(f".{out.name}.{os.getpid()}")
        shutil.copyfile(fresh, beside)
        beside.chmod(0o755)
        os.replace(beside, out)
    return out


def bill_of_materials(plan: Plan, version: str, library: Path) -> str:
    """What is in a library that `build` has built here, and what it was built with: JSON text."""
    sbom, kernels = sibling("sbom"), find_kernels(os.environ, plan.release)
    tools = [sbom.package_tool(f"hatchling=={metadata.version('hatchling')}", "the build backend")]
    for package, role, own in (
        (toolchain.GO, "brought the Go compiler", plan.go),
        (toolchain.ZIG, "the C compiler", plan.compiler),
    ):
        if own is None:
            digest = package.digests[plan.machine]
            tools.append(sbom.package_tool(package.requirement, role, content_sha256=digest))
    if plan.compiler is not None:
        tools.append(sbom.c_compiler(plan.compiler))
    header = kernels_header(kernels.read_bytes()) if kernels is not None else None
    text: str = sbom.document(version, library, go_command(plan), tools, header)
    return text


def read_version() -> str:
    """The project's version, from the one place that states it."""
    text = (ROOT / "python" / "moewire" / "_version.py").read_text()
    match = re.search(r'^__version__(?:: *\w+)? = "([^"]+)"', text, re.MULTILINE)
    if match is None:
        raise BuildError("python/moewire/_version.py states no __version__")
    return match[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "python" / "moewire" / LIBRARY)
    args = parser.parse_args()
    try:
        print(build(make_plan(os.environ), read_version(), args.out))
    except BuildError as err:
        print(err, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
