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

import torch

import moewire.compat.deep_ep

moewire.compat.deep_ep.install()

import megatron.core.transformer.moe.token_dispatcher  # noqa: E402, F401


def nemo() -> ModuleType:
    """NeMo Automodel's file: its package imports much more."""
    return _file_of("nemo_automodel", "components", "moe", "megatron", "fused_a2a.py")


def titan() -> ModuleType:
    """TorchTitan's file. It registers its operators for CUDA alone."""
    known = "torchtitan_deepep" in sys.modules
    module = _file_of("torchtitan", "distributed", "deepep", "deepep.py")
    if not known:
        torch.library.impl("deepep::dispatch", "CPU")(module._dispatch_op_impl)
        torch.library.impl("deepep::combine", "CPU")(module._combine_op_impl)
    return module


def titan_hybrid() -> ModuleType:
    """TorchTitan's file for HybridEP, its four operators registered for the CPU as well."""
    known = "torchtitan_hybridep" in sys.modules
    module = _file_of("torchtitan", "distributed", "deepep", "hybridep.py")
    if not known:
        for name in ("dispatch", "combine", "dispatch_bwd", "combine_bwd"):
            operator = getattr(module, f"_{name}_impl")
            operator.register_kernel("cpu")(operator._init_fn)
    return module


def _file_of(package_name: str, *parts: str) -> ModuleType:
    """One file of a package, without what the package imports."""
    name = f"{package_name}_{Path(parts[-1]).stem}"
    if name not in sys.modules:
        package = importlib.util.find_spec(package_name)
        assert package is not None and package.submodule_search_locations
        path = Path(next(iter(package.submodule_search_locations)), *parts)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


nemo()
titan()
titan_hybrid()
