"""Moewire as the all-to-all of vLLM's expert parallelism (``--data-parallel-size``, ``-ep``).

vLLM loads this by entry point in every process. It does nothing unless the user asks for it: by
naming ``moewire`` in vLLM's ``VLLM_PLUGINS``, by ``MOEWIRE_VLLM``, or on vLLM's command line by
``--additional-config '{"moewire": ...}'``. The value is ``1``, or a comma list of

- ``manager``: the flat exchange, a row once per rank, in place of vLLM's
  ``allgather_reducescatter``. The default, with ``repairs``.
- ``batched``: the packed exchange, a row once per expert, for batched experts. On CUDA in
  place of ``deepep_low_latency``.
- ``repairs``: only what vLLM's own expert parallelism on the CPU lacks; no exchange of Moewire.

Apart from this, it names to vLLM the secondary tier of ``offload``, which does nothing unless a
configuration asks for it; ``0`` keeps it out as well. A configuration finds the offloading spec for
the CPU here: ``"spec_name": "MoewireCPUOffloadingSpec"``, ``"spec_module_path":
"moewire.integrations.vllm"``.

vLLM has no registry for the exchange, so classes and functions of its modules are replaced, and
only in the versions in ``_engines.VLLM.tested``. docs/vllm.md says what was run.

Importing this module imports neither vLLM nor torch.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from .. import _engines, _mooncake_store, _plugin
from . import _command_line, offload

if TYPE_CHECKING:
    from ...buffer import Buffer
    from .offload.cpu import MoewireCPUOffloadingSpec

__all__ = ["MoewireCPUOffloadingSpec", "activate", "buffers", "close"]

_DEFAULT = frozenset({"manager", "repairs"})


def activate() -> None:
    """The entry point: puts in place what was asked for, if anything. Idempotent."""
    _mooncake_store.activate()
    _command_line.export(sys.argv, os.environ, _engines.VLLM.switch)
    if os.environ.get(_engines.VLLM.switch, "").strip() != "0":
        offload.register()
    _plugin.activate(_engines.VLLM, _apply)


def __getattr__(name: str) -> Any:
    if name == "MoewireCPUOffloadingSpec":  # imports vLLM
        from .offload.cpu import MoewireCPUOffloadingSpec

        return MoewireCPUOffloadingSpec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


def buffers() -> list[Buffer]:
    """The Buffers of this process. ``Buffer.counters`` has the core's own counts.

    Returns:
        One Buffer per group and shape; none before the first forward.
    """
    from .. import _buffers

    return _buffers.open_buffers()


def close() -> None:
    """Closes every Buffer made here; other ranks that wait for this one are told."""
    from .. import _buffers

    _buffers.close_buffers()


def _apply(parts: frozenset[str]) -> str:
    from . import _patches

    return _patches.install(parts or _DEFAULT)
