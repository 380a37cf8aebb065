"""What the virtual machine is made of: Debian packages, unpacked into a folder of the user's cache.

Nothing is installed and no right is needed. apt fetches from wherever this
machine fetches its packages. The folder holds

    qemu/      the emulator and the libraries that it needs
    userland/  rdma-core and its tools; the guest sees it laid over this machine's root
    kernel/    vmlinux of a stock kernel
    initrd.gz  busybox, the modules in the order in which they are loaded, init
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import platform
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent

EMULATOR = ["qemu-system-x86", "busybox-static"]
USERLAND = ["libibverbs1", "ibverbs-providers", "libibverbs-dev", "ibverbs-utils"]
USERLAND += ["iproute2", "kmod"]
# Those of udev and systemd belong to a running system.
NOT_UNPACKED = ("systemd", "libsystemd", "udev_", "libudev")

# Modules in two groups: what reaches this machine's files, and what makes RDMA devices.
BOOT_MODULES = ["virtio_pci", "virtio_console", "virtio-rng", "9pnet_virtio", "9p", "overlay"]
RDMA_MODULES = ["crc32_generic", "crc32c_generic", "rdma_rxe", "ib_umad", "dummy"]
RDMA_MODULES += ["veth", "sch_netem"]  # for networks that lose packets


class UnavailableError(Exception):
    """The machine cannot be had here; the text says why."""


def cache() -> Path:
    """The folder; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "moewire" / "rdma"


def prepare() -> Path:
    """The folder, filled. It is filled again when these scripts have changed."""
    if platform.machine() != "x86_64":
        raise UnavailableError(f"this machine is {platform.machine()}, the packages are of x86_64")
    for tool in ("apt-get", "apt-cache", "dpkg"):
        if shutil.which(tool) is None:
            raise UnavailableError(f"no {tool} on this machine")
    scripts = (Path(__file__), HERE / "init")
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in scripts)).hexdigest()
    folder = cache()
    stamp = folder / "filled"
    if stamp.is_file() and stamp.read_text() == digest:
        return folder
    # Filled beside and moved, so that no process meets half of it.
    beside = folder.with_name(f"rdma.{os.getpid()}")
    try:
        fill(beside)
        (beside / "filled").write_text(digest)
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
    except OSError as err:
        raise UnavailableError(f"cannot fill {folder}: {err}") from err
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def fill(folder: Path) -> None:
    apt = Apt(folder / "apt")
    unpack(apt.with_dependencies("emulator", EMULATOR), folder / "qemu")
    unpack(apt.with_dependencies("userland", USERLAND), folder / "userland")
    for name in ("doc", "man", "locale"):
        shutil.rmtree(folder / "userland/usr/share" / name, ignore_errors=True)
    package = apt.kernel()
    unpack([package], folder / "kernel")
    busybox = folder / "qemu/usr/bin/busybox"
    build_initrd(folder, busybox)
    shutil.rmtree(folder / "kernel/usr")
    shutil.rmtree(folder / "apt")


class Apt:
    """apt with lists and archives in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        self.options = [
            f"-oDir::State::lists={folder}/lists",
            f"-oDir::Cache={folder}/cache",
            "-oDebug::NoLocking=1",
            "-oAPT::Sandbox::User=",
            "-oAcquire::Retries=2",
            "-oAcquire::Languages=none",
        ]
        self.call("apt-get", "-q", "update")

    def call(self, tool: str, *words: str) -> str:
        done = subprocess.run(
            [tool, *self.options, *words],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            tail = (done.stdout + done.stderr).strip().splitlines()[-3:]
            raise UnavailableError(f"{tool} {words[0]} failed: {'; '.join(tail)}")
        return done.stdout

    def with_dependencies(self, name: str, packages: list[str]) -> list[Path]:
        """Fetches the packages, and what this machine lacks of their dependencies."""
        archives = self.folder / name
        (archives / "partial").mkdir(parents=True)
        self.call("apt-get", "install", "--yes", "--no-install-recommends", "--download-only",
                  f"-oDir::Cache::archives={archives}", *packages)  # fmt: skip
        return sorted(archives.glob("*.deb"))

    def kernel(self) -> Path:
        """Fetches the newest stock kernel, without what it depends on."""
        depends = self.call("apt-cache", "depends", "linux-image-amd64")
        names = [line.split()[1] for line in depends.splitlines() if "Depends: linux-image" in line]
        if not names:
            raise UnavailableError("apt knows no linux-image-amd64")
        self.call("apt-get", "download", names[0])
        return next(self.folder.glob("linux-image-*.deb"))


def unpack(packages: list[Path], root: Path) -> None:
    """Unpacks packages into one tree, in which bin, sbin and lib are those of usr."""
    root.mkdir()
    for package in packages:
        if not package.name.startswith(NOT_UNPACKED):
            subprocess.run(["dpkg", "-x", package, root], check=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if (root / name).is_dir() and not (root / name).is_symlink():
            shutil.copytree(root / name, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(root / name)


def build_initrd(folder: Path, busybox: Path) -> None:
    (image,) = (folder / "kernel/boot").glob("vmlinuz-*")
    version = image.name.removeprefix("vmlinuz-")
    (folder / "kernel/vmlinux").write_bytes(plain_kernel(image.read_bytes()))
    root = folder / "initrd"
    for name in ("bin", "modules", "proc", "sys", "dev", "host", "userland", "shared", "up", "new"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    shutil.copy(HERE / "init", root / "init")
    (root / "init").chmod(0o755)

    modules = Modules(folder / "kernel/usr/lib/modules" / version, busybox)
    for name, wanted in (("boot", BOOT_MODULES), ("rdma", RDMA_MODULES)):
        files = modules.in_order(wanted)
        for file in files:
            shutil.copy(file, root / "modules")
        (root / f"modules/{name}.list").write_text("".join(f"{f.name}\n" for f in files))
    names = "".join(f"{p.relative_to(root)}\n" for p in sorted(root.rglob("*")))
    packed = subprocess.run([busybox, "cpio", "-o", "-H", "newc"], cwd=root, check=True,
                            input=names.encode(), capture_output=True)  # fmt: skip
    (folder / "initrd.gz").write_bytes(gzip.compress(packed.stdout, 1))
    shutil.rmtree(root)


def plain_kernel(image: bytes) -> bytes:
    """The ELF file inside a compressed kernel image: an emulated processor unpacks it slowly."""
    magic = b"\xfd7zXZ\x00"
    at = image.find(magic)
    while at >= 0:
        try:
            plain = lzma.LZMADecompressor().decompress(image[at:])
            if plain.startswith(b"\x7fELF"):
                return plain
        except lzma.LZMAError:
            pass
        at = image.find(magic, at + 1)
    raise UnavailableError("the kernel image holds nothing that xz can unpack")


class Modules:
    """The modules of one kernel, and what each needs."""

    def __init__(self, folder: Path, busybox: Path) -> None:
        self.folder = folder
        base = folder.parents[2]
        subprocess.run([busybox, "depmod", "-b", base, folder.name], check=True)
        self.needs: dict[str, list[str]] = {}
        for line in (folder / "modules.dep").read_text().splitlines():
            file, _, needs = line.partition(":")
            self.needs[file] = needs.split()
        self.files = {Path(f).name.split(".")[0].replace("-", "_"): f for f in self.needs}
        self.done: list[str] = []

    def in_order(self, names: list[str]) -> list[Path]:
        """The files to load, in order, less those that an earlier call gave."""
        before = len(self.done)
        for name in names:
            file = self.files.get(name.replace("-", "_"))
            if file is None:
                raise UnavailableError(f"the kernel has no module {name}")
            self.add(file)
        return [self.folder / file for file in self.done[before:]]

    def add(self, file: str) -> None:
        if file in self.done:
            return
        for needed in self.needs[file]:
            self.add(needed)
        self.done.append(file)
