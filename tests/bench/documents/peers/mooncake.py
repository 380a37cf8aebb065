"""A peer: Mooncake EP's own fallback in plain torch, which is what it offers without a GPU.

It runs over gloo on this machine alone, in processes of its own, from the wheel
``mooncake-transfer-engine-non-cuda``. The wheel's ``mooncake.ep`` needs a GPU. So a module
stands in for it that has only the answers which lead to the fallback. Gathered tensors are
given to gloo in the shape that it accepts (views, no copies). Its combine rounds every partial
sum to bf16, so its results are compared with a tolerance.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
import warnings
from typing import Any

import torch
import torch.distributed as dist

from moewire.bench.peers import Unavailable
from moewire.bench.workload import Workload, dequantise

from . import venvs
from .remote import Remote, serve

PACKAGE = "mooncake-transfer-engine-non-cuda"
VERSION = "0.3.13.post1"
_TOLERANCE = 0.02
# Its cast rounds differently: a value may be one step of e4m3, a sixteenth, away.
_FP8_TOLERANCE = 0.08


def connect(work: Workload, group: dist.ProcessGroup, folder: str) -> Remote:
    """Collective. Rank 0 installs, then every rank starts its process."""
    if work.num_ranks == 1:
        raise Unavailable("its fallback needs two ranks")
    peer = Remote("mooncake", work, folder)
    peer.version = f"{PACKAGE} {VERSION}, its fallback in torch"
    peer.tolerance = _FP8_TOLERANCE if work.fp8 else _TOLERANCE
    reason = [""]
    if work.rank == 0:
        try:
            venvs.installed(PACKAGE, VERSION)
        except Unavailable as error:
            reason[0] = str(error)
    dist.broadcast_object_list(reason, 0, group)
    try:
        if reason[0]:
            raise Unavailable(reason[0])
        _start(peer, work)
        peer.accept()
    except Unavailable:
        peer.close()
        raise
    return peer


def _start(peer: Remote, work: Workload) -> None:
    root = venvs.installed(PACKAGE, VERSION)
    numbers = [str(work.rank), str(work.num_ranks)]
    command = [
        str(root / "bin" / "python"),
        "-m",
        __spec__.name,
        peer.prefix,
        *numbers,
    ]
    peer.start(command, venvs.environment(root))


class _Native:
    """In place of ``mooncake.ep.Buffer``: no RDMA, no peer access between GPUs."""

    def __init__(self, *_: object) -> None:
        pass

    def ibgda_disabled(self) -> bool:
        return True

    def p2p_enabled(self) -> bool:
        return False


def _buffer_class() -> Any:
    package = importlib.import_module("mooncake")
    stand_in = types.ModuleType("mooncake.ep")
    stand_in.Buffer = _Native  # type: ignore[attr-defined]
    sys.modules["mooncake.ep"] = stand_in
    package.ep = stand_in  # type: ignore[attr-defined]
    return importlib.import_module("mooncake.mooncake_ep_buffer").Buffer


def _accept_stacked_gathers() -> None:
    """gloo wants [R * T, H] where the fallback passes [R, T, H]."""
    gather = dist.all_gather_into_tensor

    def flat(out: torch.Tensor, given: torch.Tensor, group: Any = None) -> None:
        gather(out.view(-1, *given.shape[1:]), given, group=group)

    dist.all_gather_into_tensor = flat


class Mooncake:
    """One rank's work, in the peer's own process."""

    def __init__(self, work: Workload) -> None:
        self._work, self._buffer = work, _buffer_class()(dist.group.WORLD)
        if not self._buffer._use_fallback:
            raise RuntimeError("this version of Mooncake did not take its fallback")
        shape = (work.num_local_experts, work.num_ranks * work.num_tokens, work.hidden)
        self._outputs = torch.zeros(shape, dtype=torch.bfloat16)
        self._handle: tuple[object, ...] = ()
        self._out = torch.empty(0)

    def dispatch(self) -> None:
        """bf16 or fp8."""
        work = self._work
        sizes = (work.num_tokens, work.num_experts, -1)
        self._recv, self._counts, self._handle, _, _ = self._buffer.dispatch(
            work.x, work.topk_idx, None, *sizes, use_fp8=work.fp8
        )

    def compute(self) -> None:
        """The identity expert."""
        for expert, count in enumerate(self._counts.tolist()):
            if self._work.fp8:
                data, scales = self._recv
                rows = dequantise(data[expert, :count], scales[expert, :count].contiguous())
            else:
                rows = self._recv[expert, :count]
            self._outputs[expert, :count] = rows

    def combine(self) -> None:
        """From ordinary memory; the fallback copies anyway."""
        work = self._work
        arguments = (self._outputs, work.topk_idx, work.weights, None, -1, self._handle)
        self._out = self._buffer.combine(*arguments)[0]

    def result(self) -> torch.Tensor:
        """bf16 [T, H]."""
        return self._out.contiguous()


def main(prefix: str, rank: int, num_ranks: int) -> None:
    """The peer's process."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // num_ranks))
    store = dist.FileStore(f"{prefix}-store", num_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
    _accept_stacked_gathers()
    serve(prefix, rank, Mooncake)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
