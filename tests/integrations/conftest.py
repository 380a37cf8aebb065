"""Makes the helpers beside this file importable, here and in the ranks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(1, str(HERE.parent / "python"))  # the emulated device, in harness
if importlib.util.find_spec("moewire") is None:
    sys.path.insert(0, str(HERE.parents[1] / "python"))


@pytest.fixture(scope="session")
def cuda_driver() -> str:
    """The emulated one."""
    from harness import emulator

    return str(emulator.driver())


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """vLLM's environment, in which Moewire is installed by its declared entry points."""
    import engine_venvs
    from engine_server import EngineServer

    python = engine_venvs.python_of("vllm", own_torch=True)
    installed: Path = tmp_path_factory.mktemp("installed")
    engine_venvs.declare(installed)
    paths = [HERE.parents[1] / "python", installed, HERE.parent / "python"]
    one = EngineServer(python, "vllm_preload", *paths)
    yield one
    one.close()
