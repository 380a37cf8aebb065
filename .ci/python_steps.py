"""The steps that build: the environment, the library, kernels and wheel; and pytest's."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys

import lock
import record
import tiers
from common import BIN, ROOT, VENV, run, sources
from outcome import StepError

REQUIREMENTS = ROOT / "tests" / "requirements.txt"
DIST = ROOT / "wheels" / "dist"

# The longest suites of tests/ begin, so that no processor waits for them at the end. Those not
# named here run last.
SUITE_ORDER = ["python", "integrations", "multihost", "examples", "capi"]


def venv() -> None:
    """A virtual environment with exactly what tests/requirements.txt lists."""
    if sys.version_info < (3, 11) and not BIN.exists():
        raise StepError("the tests need Python 3.11 or newer (torch 2.15 does): make PYTHON=...")
    stamp = VENV / "moewire-requirements.sha256"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        print(f"{VENV} is up to date")
        return
    if not (BIN / "python").exists():
        run(sys.executable, "-m", "venv", VENV)
    lock.install(run, BIN, REQUIREMENTS)
    stamp.write_text(digest)


# What the library is made of, and how it is installed.
LIBRARY_SOURCES = ["core", "capi", "wheels", "go.mod", "go.sum", "pyproject.toml"]


def library_digest() -> str:
    """Of the sources, of the library that was built, and of where it was installed."""
    digest = hashlib.sha256(f"{VENV} {os.environ.get('CC', '')}".encode())
    library = ROOT / "python" / "moewire" / "libmoewire.so"
    for name in sorted(sources(*LIBRARY_SOURCES)):
        digest.update(f"{name}\0".encode() + (ROOT / name).read_bytes() + b"\0")
    digest.update(library.read_bytes() if library.is_file() else b"none")
    return digest.hexdigest()


def install() -> None:
    """Builds the library and installs the package, editable; once for the same sources."""
    stamp = VENV / "moewire-library.sha256"
    if stamp.is_file() and stamp.read_text() == library_digest():
        print("the library is up to date")
        return
    # What the lock names is here already, so the build needs no isolation.
    run(BIN / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
        "--disable-pip-version-check", "-e", ".")  # fmt: skip
    stamp.write_text(library_digest())


def kernels() -> None:
    """The CUDA kernels' code for a release, by the compilers that wheels/nvrtc pins."""
    run(BIN / "python", "wheels/build_kernels.py")


def wheel() -> None:
    """The release wheel, audited."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(BIN / "python", "-m", "build", "--wheel", "--no-isolation", "--outdir", DIST,
        env={"MOEWIRE_RELEASE": "1"})  # fmt: skip
    found = list(DIST.glob("*.whl"))
    if len(found) != 1:
        raise StepError(f"{DIST} should hold one wheel, has: {found}")
    run(BIN / "python", "wheels/audit.py", "--release", found[0])


def suites() -> list[str]:
    """The folders of tests/ that pytest runs."""
    found = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    rest = sorted(found.difference(SUITE_ORDER))
    return [name for name in SUITE_ORDER if name in found] + rest


def pytest(suite: str, step: str, *words: str, env: dict[str, str] | None = None) -> None:
    """One folder of Python tests, those of this run's tier."""
    kept = record.FOLDER / f".{step}"
    record.FOLDER.mkdir(parents=True, exist_ok=True)
    wheels = list(DIST.glob("*.whl")) if suite == "wheel" else []
    more = {"MOEWIRE_WHEEL": str(wheels[0])} if wheels else {}
    if os.environ["MOEWIRE_TIER"] == "long":
        more |= tiers.long_values()
    try:
        run(BIN / "python", "-m", "pytest", "-q", *words, f"tests/{suite}",
            env={"MOEWIRE_TEST_RECORD": str(kept), **more, **(env or {})})  # fmt: skip
    finally:
        record.save(os.environ["MOEWIRE_TIER"], step, record.from_pytest(kept))
        kept.unlink(missing_ok=True)


def pytest_fuzz(suite: str, step: str) -> None:
    """The fuzzing tests of one folder, in any tier, for the time that this tier sets."""
    pytest(suite, step, "-m", "fuzz", env={"MOEWIRE_TIER": ""})
