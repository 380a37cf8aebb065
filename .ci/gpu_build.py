"""What has to be built here for a machine with a GPU, and found there: build/gpu."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "gpu"
CUDA = ROOT / "core" / "device" / "cuda"
GROUPS = ROOT / "core" / "ep" / "cuda"
ARCHIVE = ROOT / "build" / "kernels" / "kernels.bin"
BENCH, EMULATOR = PLACE / "gpubench", PLACE / "emulator.so"
LIBRARY = PLACE / "libmoewire.so"
ENGINE_TESTS, GROUP_TESTS = PLACE / "engine.test", PLACE / "group.test"
# Says whether the programs have prebuilt kernels.
STAMP = PLACE / "built.json"
# More is unwieldy to carry to another machine.
LIMIT_BYTES = 64 << 20


class CannotBuildError(Exception):
    """The text says why."""


def find() -> None:
    """Takes what was built elsewhere, and carried here."""
    programs = (BENCH, ENGINE_TESTS, GROUP_TESTS)
    if missing := [path.name for path in programs if not path.is_file()]:
        raise CannotBuildError(f"no go on PATH, and build/gpu has no {', '.join(missing)}")
    for path in programs:
        path.chmod(0o755)


def build(emulated: bool, anew: bool) -> None:
    """Builds everything. ``anew``: for another machine, with all that can be made here."""
    PLACE.mkdir(parents=True, exist_ok=True)
    if anew:
        _kernels()
    prebuilt = _is_current(ARCHIVE)
    flags = ["-buildvcs=false", "-ldflags=-s -w", *_overlay(prebuilt)]
    for words in (
        ["go", "test", "-c", *flags, "-o", str(ENGINE_TESTS), "./core/device/cuda"],
        ["go", "test", "-c", *flags, "-o", str(GROUP_TESTS), "./core/ep/cuda"],
        ["go", "build", *flags, "-o", str(BENCH), "./core/device/cuda/gpubench"],
    ):
        _do(words, {"CGO_ENABLED": "0"})
    _library(prebuilt)
    if emulated or anew:
        _emulator(required=emulated)
    commit = _said("git", "describe", "--always", "--dirty")
    STAMP.write_text(json.dumps({"prebuilt": prebuilt, "commit": commit}) + "\n")


def stamp() -> dict[str, object]:
    """What `build` left beside the programs: "prebuilt" and "commit"."""
    found: dict[str, object] = json.loads(STAMP.read_text()) if STAMP.is_file() else {}
    return found


def python() -> str:
    """The interpreter that has torch: of the tests' environment, else this one."""
    venv = Path(os.environ.get("MOEWIRE_VENV") or ROOT / ".venv") / "bin" / "python"
    return str(venv) if venv.is_file() else sys.executable


def lacking(modules: tuple[str, ...]) -> str:
    """Which of these Python packages are not there; "" if all are."""
    here = python()
    if here == sys.executable:
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        return f"{here} has no {', '.join(missing)}" if missing else ""
    done = subprocess.run([here, "-c", f"import {', '.join(modules)}"], capture_output=True)
    return "" if done.returncode == 0 else f"{here} has not all of {', '.join(modules)}"


def report() -> str:
    """What is to be carried, how large it is, and what to call on the other machine."""
    lines = ["What is carried with the tree:"]
    sizes = {path.name: path.stat().st_size for path in sorted(PLACE.iterdir()) if path.is_file()}
    lines += [f"  {size / 2**20:6.1f} MiB  build/gpu/{name}" for name, size in sizes.items()]
    tree = sum(_tracked())
    total = tree + sum(sizes.values())
    lines += [
        f"  {tree / 2**20:6.1f} MiB  the tree's own files",
        f"  {total / 2**20:6.1f} MiB  in all, of {LIMIT_BYTES >> 20} MiB at most",
        "On the other machine, in the tree's root, with the Python that has torch:",
        "  python3 .ci/gpu.py test --built --out results",
        "  python3 .ci/gpu.py bench --built --out results",
    ]
    if total > LIMIT_BYTES:
        raise CannotBuildError("\n".join([*lines, "that is too much"]))
    return "\n".join(lines)


def _tracked() -> list[int]:
    names = _said("git", "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    return [(ROOT / name).stat().st_size for name in names if name and (ROOT / name).is_file()]


def _kernels() -> None:
    """As `make kernels`. Without it the kernels' code is what NVRTC makes on the other machine."""
    done = subprocess.run([python(), "wheels/build_kernels.py"], cwd=ROOT)
    if done.returncode:
        print("no prebuilt kernels: NVRTC will compile them there", flush=True)


def _is_current(archive: Path) -> bool:
    """Whether it is there, and of these kernels."""
    if not archive.is_file():
        return False
    sys.path.insert(0, str(ROOT / "wheels"))
    import build_library

    made_of = str(build_library.kernels_header(archive.read_bytes())["source"])
    return made_of.split("-")[0] == build_library.kernels_digest()


def _overlay(prebuilt: bool) -> list[str]:
    if not prebuilt:
        return []
    overlay = PLACE / "overlay.json"
    embedded = CUDA / "images" / "prebuilt" / "kernels.bin"
    overlay.write_text(json.dumps({"Replace": {str(embedded): str(ARCHIVE)}}))
    return [f"-overlay={overlay}"]


def _library(prebuilt: bool) -> None:
    """As a release has it, for old glibcs, if its compiler is there."""
    env = {"MOEWIRE_KERNELS": str(ARCHIVE) if prebuilt else "none"}
    zig = subprocess.run([python(), "-c", "import ziglang"], capture_output=True)
    if zig.returncode == 0:
        env["MOEWIRE_RELEASE"] = "1"
    _do([python(), "wheels/build_library.py", "--out", str(LIBRARY)], env)


def _emulator(required: bool) -> None:
    env = {"MOEWIRE_CUDA_GIVE": str(EMULATOR), "MOEWIRE_CUDA_TEST": ""}
    try:
        _do([str(ENGINE_TESTS), "-test.run=^TestGiveEmulator$", "-test.v"], env, CUDA)
        if not EMULATOR.is_file():
            raise CannotBuildError("no emulator: it needs a C++ compiler and cuda.h")
    except CannotBuildError as err:
        if required:
            raise
        print(err, flush=True)


def _do(words: list[str], env: dict[str, str], cwd: Path = ROOT) -> None:
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuildError(f"{' '.join(words)}:\n{done.stdout}{done.stderr}")


def _said(*words: str) -> str:
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
