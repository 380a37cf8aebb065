"""Fixtures of the wheel's tests: the modules of wheels/, a wheel, a source archive."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from wheel_tools import load, run


@pytest.fixture(scope="session")
def build_library() -> ModuleType:
    return load("build_library")


@pytest.fixture(scope="session")
def audit() -> ModuleType:
    return load("audit")


@pytest.fixture(scope="session")
def release_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `make wheel` has built (MOEWIRE_WHEEL), else one built anew from the tree."""
    if os.environ.get("MOEWIRE_WHEEL"):
        return Path(os.environ["MOEWIRE_WHEEL"])
    out = tmp_path_factory.mktemp("release")
    env = {**os.environ, "MOEWIRE_RELEASE": "1"}
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, env=env)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive."""
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out)
    (archive,) = out.glob("*.tar.gz")
    return archive
