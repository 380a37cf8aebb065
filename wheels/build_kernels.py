"""Makes the archive of the CUDA kernels' code that a release has: `make kernels`.

Compiles with NVIDIA's NVRTC, which needs no GPU and no driver. Its packages, pinned in nvrtc/,
are installed into folders of build/kernels: two versions cannot be in one environment. Needs
Python with pip, and Go. Fails where registers or shared memory are not those of
kernels/testdata/uses_release.txt; with --update it rewrites that.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "wheels" / "nvrtc"
PLACE = ROOT / "build" / "kernels"
ARCHIVE = PLACE / "kernels.bin"
USES = ROOT / "core" / "device" / "cuda" / "kernels" / "testdata" / "uses_release.txt"


def run(*command: str | Path) -> None:
    """Runs a command in the tree."""
    env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    subprocess.run([str(word) for word in command], cwd=ROOT, env=env, check=True)


def compiler(name: str) -> Path:
    """The library of the compiler that nvrtc/NAME.txt pins; installs it if it is not there."""
    pin = PINS / f"{name}.txt"
    folder = PLACE / f"{name}-{hashlib.sha256(pin.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
        run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--only-binary=:all:", "--require-hashes", "--target", fresh,
            "-r", pin)  # fmt: skip
        try:
            fresh.rename(folder)
        except OSError:  # another build was faster
            shutil.rmtree(fresh)
    (library,) = folder.glob("nvidia/cuda_nvrtc/lib/libnvrtc.so.1?")
    return library


def made_of() -> str:
    """A digest of everything that the archive depends on."""
    folder = ROOT / "core" / "device" / "cuda"
    files = [*folder.glob("kernels/*.cu*"), folder / "kernels" / "source.go", *PINS.glob("*.txt")]
    files += [USES] if USES.is_file() else []
    files += [f for f in folder.glob("images/**/*.go") if not f.name.endswith("_test.go")]
    digest = hashlib.sha256()
    for file in sorted([*files, ROOT / "go.sum"]):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def main() -> int:
    update = ["-update"] if sys.argv[1:] == ["--update"] else []
    stamp, digest = ARCHIVE.with_suffix(".sha256"), made_of()
    if not update and ARCHIVE.is_file() and stamp.is_file() and stamp.read_text() == digest:
        print(f"{ARCHIVE.relative_to(ROOT)} is up to date")
        return 0
    PLACE.mkdir(parents=True, exist_ok=True)
    fresh = PLACE / f".{ARCHIVE.name}.{os.getpid()}"
    try:
        run("go", "run", "-trimpath", "./core/device/cuda/images/prebuild",
            "-cubins", compiler("cubins"), "-ptx", compiler("ptx"), "-out", fresh,
            "-uses", USES, *update)  # fmt: skip
    except subprocess.CalledProcessError as err:
        print(f"no kernels: {err}", file=sys.stderr)
        return 1
    fresh.replace(ARCHIVE)
    stamp.write_text(made_of())
    return 0


if __name__ == "__main__":
    sys.exit(main())
