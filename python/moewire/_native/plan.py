"""What all dispatches of one shape share: checked once, then kept by their buffer.

A plan holds sizes, templates of the small results, and argument structs, filled except for what
differs from call to call. Plans do not depend on the number of tokens, which changes with every
batch. Any thread may use a plan: structs are taken for a call and released after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from .. import _abi as abi

# The library blocks at most this long in one call, so that Ctrl-C is handled.
SLICE_US = 100_000
# Plans per buffer; a caller with more shapes than this builds some again.
MAX_PLANS = 64

# One token of an extra tensor: its dtype, and its shape without T.
Extra = tuple[torch.dtype, tuple[int, ...]]
# hidden, num_topk, num_max_tokens, num_experts, the flags of the form of rows, extra tensors.
Key = tuple[int, int, int, int, int, tuple[Extra, ...]]
FORMAT_FLAGS = (
    abi.MW_DISPATCH_FP8
    | abi.MW_DISPATCH_ROUND_SCALE
    | abi.MW_DISPATCH_UE8M0
    | abi.MW_DISPATCH_FP32_OUTPUTS
    | abi.MW_DISPATCH_FLAT
    | abi.MW_DISPATCH_NO_ROUTING
)
Taken = TypeVar("Taken")


class Pool(Generic[Taken]):
    """Objects that are taken for one call and released after it, by any thread.

    If a call fails and does not release its object, that becomes garbage.
    """

    __slots__ = ("_free", "_new", "release")

    def __init__(self, new: Callable[[], Taken]) -> None:
        self._free: list[Taken] = []
        self._new = new
        self.release = self._free.append

    def take(self) -> Taken:
        """An object that no other call holds."""
        try:
            return self._free.pop()
        except IndexError:
            return self._new()


def row_bytes(extra: Extra) -> int:
    """Bytes per token."""
    dtype, shape = extra
    return int(math.prod(shape) * dtype.itemsize)


class Plan:
    """The sizes of one kind of dispatch on this rank.

    Packed rows lie in a block per expert of this rank; flat rows are one block.
    """

    __slots__ = (
        "args",
        "counts",
        "extra",
        "flat",
        "fp8",
        "has_routing",
        "hidden",
        "layout",
        "num_experts",
        "num_max_tokens",
        "num_topk",
        "output_dtype",
        "rows",
        "templates",
        "ue8m0",
    )

    def __init__(self, key: Key, num_ranks: int) -> None:
        self.hidden, self.num_topk, self.num_max_tokens, self.num_experts, flags, self.extra = key
        self.fp8 = bool(flags & abi.MW_DISPATCH_FP8)
        self.ue8m0 = bool(flags & abi.MW_DISPATCH_UE8M0)
        self.flat = bool(flags & abi.MW_DISPATCH_FLAT)
        self.has_routing = self.flat and not flags & abi.MW_DISPATCH_NO_ROUTING  # rows come with it
        fp32 = flags & abi.MW_DISPATCH_FP32_OUTPUTS
        self.output_dtype = torch.float32 if fp32 else torch.bfloat16  # of the experts
        blocks = () if self.flat else (self.num_experts // num_ranks,)  # L
        # The shape of all rows that there is room for, and of expert outputs: [L, R*M, H], [R*M, H]
        self.rows = (*blocks, num_ranks * self.num_max_tokens, self.hidden)
        # ``empty_like`` costs half as much as a tensor made from sizes.
        self.counts = torch.empty(blocks or (1,), dtype=torch.int32, device="cpu")
        self.layout = torch.empty((*blocks, num_ranks), dtype=torch.int64, device="cpu")
        # The same on a device, made by the first dispatch there. Only their sizes are used.
        self.templates: tuple[torch.Tensor, torch.Tensor] | None = None
        self.args: Pool[abi.mw_dispatch_args_t] = Pool(self._new_args)

    def _new_args(self) -> abi.mw_dispatch_args_t:
        """A struct with all but flags, inputs, deadline, phase and results."""
        args = abi.mw_dispatch_args_t(
            size=abi.SIZE_OF[abi.mw_dispatch_args_t],
            hidden=self.hidden,
            num_topk=self.num_topk,
            num_max_tokens_per_rank=self.num_max_tokens,
            num_experts=self.num_experts,
            slice_us=SLICE_US,
        )
        for at, extra in enumerate(self.extra):
            args.extra_row_bytes[at] = row_bytes(extra)
        return args


class Plans:
    """The plans of a buffer."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._plans: dict[Key, Plan] = {}
        # The plan for unchecked arguments: None if they were never found right.
        self.find = self._plans.get

    def of(self, key: Key) -> Plan:
        """The plan for arguments that were checked."""
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans.setdefault(key, Plan(key, self._num_ranks))
        return plan


def _new_combine_args() -> abi.mw_combine_args_t:
    return abi.mw_combine_args_t(size=abi.SIZE_OF[abi.mw_combine_args_t], slice_us=SLICE_US)


# Filled for each call, so all buffers share them.
combine_args: Pool[abi.mw_combine_args_t] = Pool(_new_combine_args)
