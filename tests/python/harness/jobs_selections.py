"""Jobs about ids and weights as routers make them."""

from __future__ import annotations

import torch

from . import verify
from .jobs_default_device import Found
from .jobs_flat import case_for
from .jobs_flat import size_for as size_for_both
from .member import Rank

# Of a call, beside int64 and float32: types of ids and of weights.
TYPES = (
    (torch.int32, torch.float32),
    (torch.int64, torch.bfloat16),
    (torch.int32, torch.float16),
)


def types(rank: Rank) -> None:
    """Every form gives the bits that it gives of the same numbers as int64 and float32."""
    case = case_for(rank)
    x, ids = verify.bf16(case.x[rank.rank]), torch.from_numpy(case.topk[rank.rank].copy())
    with rank.buffer(size_for_both([case]), deterministic=True) as buffer:

        def packed(ids: torch.Tensor, weights: torch.Tensor, pre: bool, hook: bool) -> Found:
            rows, counts, handle, _, finish = buffer.dispatch(
                x,
                ids,
                None,
                case.num_max,
                case.num_experts,
                30_000_000,
                False,
                return_recv_hook=hook,
                pre_reduce=pre,
                topk_weights=weights if pre else None,
            )
            if finish is not None:
                finish()
            assert isinstance(rows, torch.Tensor)
            y = buffer.get_next_combine_buffer(handle)
            y.fill_(1)
            out = buffer.combine(y, ids, weights, None, 30_000_000, handle, zero_copy=True)[0]
            return [counts, handle[1], out]

        def flat(ids: torch.Tensor, weights: torch.Tensor) -> Found:
            got = buffer.dispatch_flat(
                x, ids, weights, case.num_max, case.num_experts, timeout_us=30_000_000
            )
            assert isinstance(got.recv_x, torch.Tensor)
            assert got.recv_topk_idx is not None and got.recv_topk_weights is not None
            rows = got.recv_x.clone()
            found = [rows, got.recv_topk_idx.clone(), got.recv_topk_weights.clone()]
            found.append(buffer.combine_flat(rows, got.handle, timeout_us=30_000_000)[0])
            again = buffer.dispatch_flat(
                x, None, None, case.num_max, case.num_experts, handle=got.handle
            )
            assert isinstance(again.recv_x, torch.Tensor)
            rows = again.recv_x.clone()
            return [*found, rows, buffer.combine_flat(rows, again.handle)[0]]

        for ids_type, weights_type in TYPES:
            weights = torch.from_numpy(case.weights[rank.rank].copy()).to(weights_type)
            given, plain = (ids.to(ids_type), weights), (ids, weights.float())
            for pre in (False, True):
                for hook in (False, True):
                    _same(packed(*given, pre, hook), packed(*plain, pre, hook))
            _same(flat(*given), flat(*plain))


def _same(got: Found, want: Found) -> None:
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        assert one.dtype is other.dtype and torch.equal(one, other), number
