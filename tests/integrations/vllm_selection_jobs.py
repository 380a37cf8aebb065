"""What the plug-in replaces in vLLM on a CUDA platform, which is a stand-in here."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import vllm_fakes as fakes
from vllm import plugins
from vllm_contract import raised

import moewire.integrations.vllm as plugin
from moewire.integrations import _engines, _plugin

_COMMUNICATORS = "vllm.distributed.device_communicators"
_FUSED_MOE = "vllm.model_executor.layers.fused_moe"
# Where vLLM's modules make an exchange for a layer.
MAKERS = (
    *(f"{_FUSED_MOE}.{name}" for name in ("all2all_utils", "eep_reconfigure")),
    *(
        f"{_FUSED_MOE}.oracle.{name}"
        for name in ("fp8", "int8", "mxfp4", "nvfp4", "unquantized", "w4a8", "w4a8_int8")
    ),
    "vllm.model_executor.layers.quantization.modelopt_block_quant",
    "vllm.model_executor.layers.quantization.utils.humming.moe",
)
BACKENDS = {"manager": "allgather_reducescatter", "batched": "deepep_low_latency"}


def refused() -> dict[str, Any]:
    """If Moewire takes no CUDA tensors: what is logged, and what of vLLM has changed."""
    fakes.on_cuda()
    before, said = _everything(), _log()
    plugins.load_general_plugins()  # as vLLM does it; it ends by what a plug-in raises
    plugins.plugins_loaded = False
    return {
        "said": said,
        # Modules that are loaded only now, to enter the tier in their table, change nothing.
        "changed": [n for n, v in _everything().items() if before.get(n, v) != v],
        "active": _plugin.active(_engines.VLLM),
        "loaded": "libmoewire" in Path("/proc/self/maps").read_text(),
    }


def taken(part: str) -> dict[str, Any]:
    """If Moewire was asked to take them: what vLLM's own code for CUDA picks for one part."""
    fakes.on_cuda()
    for name in MAKERS:
        importlib.import_module(name)
    before, said = _everything(), _log()
    plugin.activate()
    changed = {name for name, value in _everything().items() if before.get(name, value) != value}
    made = {f"{name}.maybe_make_prepare_finalize" for name in MAKERS}
    answer: dict[str, Any] = {"said": said, "changed": sorted(changed - made)}
    answer["makers"] = [len(made & changed), len(made)]
    fakes.groups(dist.group.WORLD)
    config = fakes.engine_config(16, 64, BACKENDS[part])
    manager = _manager(config)
    answer |= {"manager": type(manager).__name__, "num_sms": manager.max_sms_used()}
    if part == "batched":
        answer["handle"] = raised(lambda: manager.get_handle({}))
        answer |= _kernel(config)
    answer["refused"] = _refused(config)
    return answer


def _everything() -> dict[str, int]:
    """Names in vLLM's modules and classes, with the identity of what they stand for."""
    found = {}
    for path, module in list(sys.modules.items()):
        if path.split(".")[0] == "vllm" and module is not None:
            for name, value in list(vars(module).items()):
                found[f"{path}.{name}"] = id(value)
                if isinstance(value, type) and value.__module__ == path:
                    inner = dict(vars(value))
                    found |= {f"{path}.{name}.{key}": id(one) for key, one in inner.items()}
    return found


def _log() -> list[str]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.levelname}: {record.getMessage()}")
    logging.getLogger("moewire").addHandler(handler)
    return lines


def _manager(config: Any) -> Any:
    """As vLLM's communicator for CUDA picks it."""
    base = importlib.import_module(f"{_COMMUNICATORS}.base_device_communicator")
    cuda = importlib.import_module(f"{_COMMUNICATORS}.cuda_communicator")
    modules = [base, cuda, importlib.import_module(f"{_COMMUNICATORS}.all2all")]
    modules += [sys.modules[name] for name in list(sys.modules) if name.startswith("moewire.inte")]
    config_module = importlib.import_module("vllm.config")
    config_module.get_current_vllm_config_or_none = lambda: config
    for module in modules:
        for name in ("get_current_vllm_config", "get_current_vllm_config_or_none"):
            if hasattr(module, name):
                setattr(module, name, lambda: config)
    communicator = cuda.CudaCommunicator(
        dist.group.WORLD, torch.device("cpu"), dist.group.WORLD, "ep:0", use_all2all=True
    )
    return communicator.all2all_manager


def _kernel(config: Any) -> dict[str, Any]:
    """As vLLM picks and makes it for a layer that is not quantised."""
    from moewire.integrations.vllm import _making

    _making.get_ep_group = lambda: SimpleNamespace(
        world_size=dist.get_world_size(), cpu_group=dist.group.WORLD
    )
    _making.get_current_vllm_config = lambda: config
    oracle = importlib.import_module(f"{_FUSED_MOE}.oracle.unquantized")
    utils = importlib.import_module(f"{_FUSED_MOE}.all2all_utils")
    moe = fakes.layer_config(0, 2, 16, 136, torch.bfloat16, BACKENDS["batched"])
    backend, experts = oracle.select_unquantized_moe_backend(moe)
    exchange = oracle.maybe_make_prepare_finalize(moe, None, None, True)
    rounded = utils.maybe_roundup_layer_hidden_size(136, torch.bfloat16, moe.moe_parallel_config)
    return {
        "backend": backend.value,
        "experts": experts.__name__,
        "exchange": type(exchange).__name__,
        "format": exchange.activation_format.name,
        "hidden": rounded,
    }


def _refused(config: Any) -> dict[str, str]:
    """Configurations that cannot work, in words."""
    from vllm.config import CUDAGraphMode

    answer = {}
    config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    answer["graphs"] = raised(lambda: _manager(config))
    config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
    config.parallel_config.enable_fault_tolerance = True
    answer["faults"] = raised(lambda: _manager(config))
    return answer
