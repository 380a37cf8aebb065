"""The steps that read the sources only."""

from __future__ import annotations

import subprocess

from common import BIN, ROOT, run, sources
from outcome import StepError


def gofmt() -> None:
    """Every Go file is formatted."""
    files = [name for name in sources("*.go") if "/testdata/" not in name]
    found = subprocess.run(["gofmt", "-l", *files], cwd=ROOT, capture_output=True, text=True)
    if found.returncode != 0 or found.stdout:
        raise StepError(f"run `make format`; not formatted:\n{found.stdout}{found.stderr}")


def vet() -> None:
    """go vet."""
    run("go", "vet", "./...")


def staticcheck() -> None:
    """staticcheck, from its own module so that it does not raise our versions."""
    run("go", "tool", "-modfile=.ci/tools/go.mod", "staticcheck", "./...")


def ruff() -> None:
    """Python: lints and formatting."""
    run(BIN / "ruff", "check", ".")
    run(BIN / "ruff", "format", "--check", ".")


def mypy() -> None:
    """Python: types of the package and of the build."""
    run(BIN / "mypy", "--strict")
