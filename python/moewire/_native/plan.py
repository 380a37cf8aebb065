"""What all dispatches of one shape share: checked once, then kept by their buffer.

A plan holds sizes, templates of the small results, and argument structs, filled except for what
differs from call to call. Plans do not depend on the number of tokens, which changes with every
batch. Any thread may use a plan: structs are taken for a call and released after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from .. import _abi as abi

# The library blocks at most this long in one call, so that Ctrl-C is handled.
SLICE_US = 100_000
# Plans per buffer; a caller with more shapes than this builds some again.
MAX_PLANS = 64

# hidden, num_topk, num_max_tokens, num_experts, and the flags of the form of rows.
Key = tuple[int, int, int, int, int]
FORMAT_FLAGS = (
    abi.MW_DISPATCH_FP8
    | abi.MW_DISPATCH_ROUND_SCALE
    | abi.MW_DISPATCH_UE8M0
    | abi.MW_DISPATCH_FP32_OUTPUTS
)
Taken = TypeVar("Taken")
Made = TypeVar("Made")


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


class Plan:
    """The sizes of one kind of dispatch on this rank."""

    __slots__ = (
        "args",
        "counts",
        "fp8",
        "hidden",
        "layout",
        "num_experts",
        "num_local_experts",
        "num_max_tokens",
        "num_rows",
        "num_topk",
        "output_dtype",
        "templates",
        "ue8m0",
    )

    def __init__(self, key: Key, num_ranks: int) -> None:
        self.hidden, self.num_topk, self.num_max_tokens, self.num_experts, flags = key
        self.fp8 = bool(flags & abi.MW_DISPATCH_FP8)
        self.ue8m0 = bool(flags & abi.MW_DISPATCH_UE8M0)
        fp32 = flags & abi.MW_DISPATCH_FP32_OUTPUTS
        self.output_dtype = torch.float32 if fp32 else torch.bfloat16  # of the experts
        self.num_local_experts = self.num_experts // num_ranks  # L
        self.num_rows = num_ranks * self.num_max_tokens  # R * M
        # ``empty_like`` costs half as much as a tensor made from sizes.
        local = self.num_local_experts
        self.counts = torch.empty((local,), dtype=torch.int32, device="cpu")
        self.layout = torch.empty((local, num_ranks), dtype=torch.int64, device="cpu")
        # The same on a device, made by the first dispatch there. Only their sizes are used.
        self.templates: tuple[torch.Tensor, ...] | None = None
        self.args: Pool[abi.mw_dispatch_args_t] = Pool(self._new_args)

    @property
    def rows(self) -> tuple[int, int, int]:
        """The shape of received rows and of expert outputs: [L, R*M, H]."""
        return self.num_local_experts, self.num_rows, self.hidden

    def _new_args(self) -> abi.mw_dispatch_args_t:
        """A struct with all but flags, inputs, deadline, phase and results."""
        return abi.mw_dispatch_args_t(
            size=abi.SIZE_OF[abi.mw_dispatch_args_t],
            hidden=self.hidden,
            num_topk=self.num_topk,
            num_max_tokens_per_rank=self.num_max_tokens,
            num_experts=self.num_experts,
            slice_us=SLICE_US,
        )


class Plans(Generic[Made]):
    """The plans of one kind that a buffer has."""

    def __init__(self, num_ranks: int, make: Callable[[Any, int], Made]) -> None:
        self._num_ranks = num_ranks
        self._make = make
        self._plans: dict[Any, Made] = {}
        # The plan for unchecked arguments: None if they were never found right.
        self.find = self._plans.get

    def of(self, key: Any) -> Made:
        """The plan for arguments that were checked."""
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans.setdefault(key, self._make(key, self._num_ranks))
        return plan


def _new_combine_args() -> abi.mw_combine_args_t:
    return abi.mw_combine_args_t(size=abi.SIZE_OF[abi.mw_combine_args_t], slice_us=SLICE_US)


# Filled for each call, so all buffers share them.
combine_args: Pool[abi.mw_combine_args_t] = Pool(_new_combine_args)
