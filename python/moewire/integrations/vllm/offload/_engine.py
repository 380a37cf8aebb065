"""The engine's own configuration, as far as the contents of KV blocks depend on it.

vLLM hands a tier less than that: no revision, no quantisation, nothing of how the model's own
configuration is overridden. But the tier is made inside the constructor of vLLM's connector, and
the caller's frames hold the whole configuration. It is looked for there, and recognised by the very
object that the tier was given of it.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from ....errors import InvalidArgument
from . import _weights

_NAME = "vllm_config"  # of the argument, in the constructors of vLLM's connectors


def found(extra_config: Any) -> Any | None:
    """vLLM's ``VllmConfig`` of the engine whose ``kv_connector_extra_config`` this is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # Reading f_locals keeps every local of that frame alive until the frame ends, so the
        # frames of others are left alone.
        if _NAME in frame.f_code.co_varnames:
            config = frame.f_locals.get(_NAME)
            transfer = getattr(config, "kv_transfer_config", None)
            if transfer is not None and transfer.kv_connector_extra_config is extra_config:
                return config
        frame = frame.f_back
    return None


def weights(config: Any, given: str | None) -> str:
    """What the model is: its files, and the settings that change what it computes with them.

    ``given`` stands for the files of the model.

    Raises:
        InvalidArgument: the files are not on this machine.
    """
    model, load = config.model_config, config.load_config
    parts = [given or _of_files(model, load), _settings(model, load)]
    draft = getattr(config.speculative_config, "draft_model_config", None)
    if draft is not None and draft is not model:
        parts += [_of_files(draft, load), _settings(draft, load)]
    return _weights.joined(*parts)


def machine(config: Any | None) -> str:
    """What else decides how attention lays out a block: the processor, the kernels, the version."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        # vLLM chooses one of several layouts by these.
        amx, avx512 = torch.cpu._is_amx_tile_supported(), torch.cpu._is_avx512_supported()
        device = f"cpu {platform.machine()} amx={amx} avx512={avx512}"
    else:
        device = f"{current_platform.device_type} {current_platform.get_device_name()}"
    backend = getattr(getattr(config, "attention_config", None), "backend", None)
    return f"vllm {vllm.__version__.partition('+')[0]}, {device}, backend {backend}"


def _settings(model: Any, load: Any) -> str:
    """With everything that was overridden, and without where the model lies."""
    values = model.hf_config.to_dict()
    values.pop("_name_or_path", None)
    chosen = [model.dtype, model.quantization, load.load_format]
    if str(load.load_format) == "dummy":
        chosen.append(model.seed)  # the weights are random numbers
    return json.dumps([values, chosen], sort_keys=True, default=str)


def _of_files(model: Any, load: Any) -> str:
    return _weights.of_files(_place(model.model, model.revision, load.download_dir))


def _place(name: str, revision: str | None, cache: str | None) -> Path:
    """Where the files of a model lie that vLLM has loaded."""
    place = Path(name)
    if place.exists():
        return place
    try:
        from huggingface_hub import try_to_load_from_cache

        at = try_to_load_from_cache(name, "config.json", cache_dir=cache, revision=revision)
    except (ImportError, ValueError):
        at = None
    if not isinstance(at, str):
        raise InvalidArgument(
            f"the files of the model {name} are not on this machine, so its weights cannot be "
            'told from others (fix: "weights": "..." in the tier\'s configuration names them)'
        )
    return Path(at).parent
