"""What all flat dispatches of one shape share: as ``plan``, for flat rows."""

from __future__ import annotations

import math

import torch

from .. import _abi as abi
from .plan import SLICE_US, Pool

# One token of an extra tensor: its dtype, and its shape without T.
Extra = tuple[torch.dtype, tuple[int, ...]]
# hidden, num_topk, num_max_tokens, num_experts, flags of the form of rows, extra tensors.
FlatKey = tuple[int, int, int, int, int, tuple[Extra, ...]]
FORMAT_FLAGS = (
    abi.MW_DISPATCH_FP8
    | abi.MW_DISPATCH_ROUND_SCALE
    | abi.MW_DISPATCH_UE8M0
    | abi.MW_DISPATCH_FP32_OUTPUTS
    | abi.MW_DISPATCH_NO_ROUTING
)


def row_bytes(extra: Extra) -> int:
    """Bytes per token."""
    dtype, shape = extra
    return int(math.prod(shape) * dtype.itemsize)


class FlatPlan:
    """The sizes of one kind of flat dispatch on this rank."""

    __slots__ = (
        "args",
        "counts",
        "extra",
        "fp8",
        "hidden",
        "layout",
        "no_routing",
        "num_experts",
        "num_max_tokens",
        "num_rows",
        "num_topk",
        "output_dtype",
        "ue8m0",
    )

    def __init__(self, key: FlatKey, num_ranks: int) -> None:
        self.hidden, self.num_topk, self.num_max_tokens, self.num_experts, flags, self.extra = key
        self.fp8 = bool(flags & abi.MW_DISPATCH_FP8)
        self.ue8m0 = bool(flags & abi.MW_DISPATCH_UE8M0)
        self.no_routing = bool(flags & abi.MW_DISPATCH_NO_ROUTING)
        fp32 = flags & abi.MW_DISPATCH_FP32_OUTPUTS
        self.output_dtype = torch.float32 if fp32 else torch.bfloat16
        self.num_rows = num_ranks * self.num_max_tokens  # R * M
        self.counts = torch.empty((1,), dtype=torch.int32, device="cpu")
        self.layout = torch.empty((num_ranks,), dtype=torch.int64, device="cpu")
        self.args: Pool[abi.mw_dispatch_args_t] = Pool(self._new_args)

    @property
    def rows(self) -> tuple[int, int]:
        """The shape of all rows that there is room for: [R*M, H]."""
        return self.num_rows, self.hidden

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
