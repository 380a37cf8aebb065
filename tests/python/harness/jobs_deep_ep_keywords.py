"""Every keyword that a client of DeepEP passes: accepted, or refused with a reason."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from moewire.deep_ep import Buffer

from .jobs_deep_ep import make_buffer
from .jobs_deep_ep_clients import check, combine, dispatch, refused, small_world
from .member import Rank

# What clients pass -> words of the error; none: accepted.
CONSTRUCT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "all defaults": ({}, ()),
    "every keyword": (
        {
            "num_qps_per_rank": 6,
            "allow_nvlink_for_low_latency_mode": False,
            "allow_mnnvl": True,
            "enable_shrink": False,
            "comm": object(),
            "use_fabric": True,
        },
        (),
    ),
    "no group": ({"group": None, "comm": object()}, ("group", "comm")),
    "bytes below zero": ({"num_rdma_bytes": -128}, ("num_rdma_bytes", "-128")),
}
_signal = torch.zeros(64, dtype=torch.int32)
DISPATCH: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "nvfp4 off": ({"use_nvfp4": False, "x_global_scale": torch.ones(1)}, ()),
    "nvfp4 on": ({"use_nvfp4": True, "x_global_scale": torch.ones(1)}, ("use_nvfp4",)),
    "bf16 with ue8m0": ({"use_fp8": False, "round_scale": True, "use_ue8m0": True}, ()),
    "ue8m0 alone": ({"use_ue8m0": True}, ("use_ue8m0", "round_scale")),
    "statistics dtype": (
        {"cumulative_local_expert_recv_stats": torch.zeros(6)},
        ("cumulative_local_expert_recv_stats", "float32", "int32"),
    ),
    "statistics length": (
        {"cumulative_local_expert_recv_stats": torch.zeros(5, dtype=torch.int32)},
        ("cumulative_local_expert_recv_stats", "[5]", "[6]"),
    ),
    "wait statistics length": (
        {"dispatch_wait_recv_cost_stats": torch.zeros(4, dtype=torch.int64)},
        ("dispatch_wait_recv_cost_stats", "[4]", "[2]"),
    ),
    "event and hook": ({"async_finish": True, "return_recv_hook": True}, ("async_finish",)),
}
COMBINE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "logfmt": ({"use_logfmt": True}, ()),
    "logfmt and zero_copy": ({"use_logfmt": True, "zero_copy": True}, ("use_logfmt", "zero_copy")),
    "overlap off, Hopper": (
        {
            "overlap": False,
            "packed_recv_count": _signal[:6],
            "comp_signal": _signal,
            "block_m": 64,
            "threshold": 2,
            "num_sms": 3,
        },
        (),
    ),
    "overlap off, Blackwell": (
        {"overlap": False, "src_signals": _signal, "src_signal_expect_value": 4},
        (),
    ),
    "overlap on": ({"overlap": True, "src_signals": _signal}, ("overlap",)),
    "wait statistics dtype": (
        {"combine_wait_recv_cost_stats": torch.zeros(2, dtype=torch.int32)},
        ("combine_wait_recv_cost_stats", "int32", "int64"),
    ),
    "event and hook": ({"async_finish": True, "return_recv_hook": True}, ("async_finish",)),
}


def construct(rank: Rank, name: str) -> None:
    options, words = CONSTRUCT[name]
    world = small_world(rank)
    arguments = {"group": rank.group(), "low_latency_mode": True, **options}
    if words:
        refused(lambda: Buffer(**arguments), words)
        dist.barrier()  # gloo's others may still be connecting to this rank
        return
    buffer = Buffer(**arguments)
    result = dispatch(rank, world, buffer)
    check(rank, world, combine(rank, world, buffer, result)[0])
    dist.barrier()


def dispatch_keywords(rank: Rank, name: str) -> None:
    """Refused or not, the buffer stays usable."""
    options, words = DISPATCH[name]
    world = small_world(rank)
    buffer = make_buffer(rank, world)
    if words:
        refused(lambda: dispatch(rank, world, buffer, **options), words)
        options = {}
    result = dispatch(rank, world, buffer, **options)
    check(rank, world, combine(rank, world, buffer, result)[0])
    dist.barrier()


def combine_keywords(rank: Rank, name: str) -> None:
    options, words = COMBINE[name]
    world = small_world(rank)
    buffer = make_buffer(rank, world)
    result = dispatch(rank, world, buffer)
    if words:
        refused(lambda: combine(rank, world, buffer, result, **options), words)
        options = {}
    check(rank, world, combine(rank, world, buffer, result, **options)[0])
    dist.barrier()
