"""What the ranks of DeepEP's clients have in common: imported once, before they are forked.

The Go library is not loaded by that.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

# Megatron compiles small functions, which takes long and gives the same.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import moewire.compat.deep_ep

moewire.compat.deep_ep.install()

import megatron.core.transformer.moe.token_dispatcher  # noqa: E402, F401


def nemo() -> ModuleType:
    """NeMo Automodel's file: its package imports much more."""
    name = "nemo_fused_a2a"
    if name not in sys.modules:
        package = importlib.util.find_spec("nemo_automodel")
        assert package is not None and package.origin is not None
        path = Path(package.origin).parent / "components" / "moe" / "megatron" / "fused_a2a.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


nemo()
