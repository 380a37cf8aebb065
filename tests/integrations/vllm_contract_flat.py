"""``FlatAll2AllManager``: rows, weights, ids and extras in, sums out."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
import vllm_contract as common
from vllm_contract import DTYPES, EXPERTS, NUM_TOKENS, Tokens

from moewire.integrations.vllm import manager as module

_case = 0


def check(manager: Any, rank: int, size: int) -> dict[str, Any]:
    """Wrong cases by name; what was refused, in words."""
    wrong = []
    for counts, dtype, parallel, extra in product(NUM_TOKENS, DTYPES, (False, True), (False, True)):
        if not _one(manager, rank, size, counts, dtype, parallel, extra):
            wrong.append(f"{counts} {dtype} sequence_parallel={parallel} extra={extra}")
    return {
        "wrong": wrong,
        "micro_batches": _micro_batches(manager, rank, size),
        "after_exception": _after_exception(manager, rank, size),
        "stands_for_nobody": _foreign(manager, rank),
        "refused": _refused(manager, rank),
    }


def _one(
    manager: Any,
    rank: int,
    size: int,
    counts: tuple[int, ...],
    dtype: torch.dtype,
    parallel: bool,
    extra: bool,
) -> bool:
    given = _new(counts, dtype)
    rows = _dispatch(manager, given[rank], parallel, extra)
    right = _arrived(rows, given, rank, size, extra)
    results = _experts(rows[0], rows[1], rank)
    if parallel:
        out = torch.empty_like(given[rank].x)
        right &= manager.combine_into_output(results, out, True) is out
    else:
        out = manager.combine(results, False)
    return right and torch.equal(out, _expected(given[rank], rank, size))


def _new(counts: tuple[int, ...], dtype: torch.dtype) -> list[Tokens]:
    global _case
    _case += 1
    return common.all_tokens(counts, dtype, _case)


def _dispatch(manager: Any, own: Tokens, parallel: bool, extra: bool) -> Any:
    extras = [own.scales, own.adapters] if extra else None
    rows = manager.dispatch(own.x, own.weights, own.ids, parallel, extra_tensors=extras)
    assert len(rows) == (4 if extra else 3)
    return rows


def _arrived(rows: Any, given: list[Tokens], rank: int, size: int, extra: bool) -> bool:
    """Once each token with an expert here, in any order, nothing else."""
    local = range(rank * EXPERTS // size, (rank + 1) * EXPERTS // size)
    expected = []
    for source in given:
        for t in range(len(source.x)):
            chosen = {
                e: w
                for e, w in zip(source.ids[t].tolist(), source.weights[t].tolist(), strict=True)
                if e in local
            }
            if chosen:
                more = [source.scales[t].tolist(), int(source.adapters[t])] if extra else []
                expected.append((source.x[t].tolist(), chosen, *more))
    return _found(rows, local, extra) == sorted(expected, key=lambda row: row[0][:2])


def _found(rows: Any, local: range, extra: bool) -> list[Any]:
    x, weights, ids = rows[:3]
    assert x.stride() == (x.shape[1], 1)  # the kernels look at it, even of one row
    found = []
    for n in range(len(x)):
        pairs = list(zip(ids[n].tolist(), weights[n].tolist(), strict=True))
        assert all(0 <= e < EXPERTS and (e in local or w == 0) for e, w in pairs)
        more = [rows[3][0][n].tolist(), int(rows[3][1][n])] if extra else []
        found.append((x[n].tolist(), {e: w for e, w in pairs if e in local}, *more))
    return sorted(found, key=lambda row: row[0][:2])


def _experts(x: torch.Tensor, weights: torch.Tensor, rank: int) -> torch.Tensor:
    """Some function of a row, its weights and the rank, in the rows' type."""
    return (x.float() * weights.sum(dim=1, keepdim=True) * (3 + rank)).to(x.dtype)


def _expected(own: Tokens, rank: int, size: int) -> torch.Tensor:
    """The sum over the ranks a token went to, in order of rank, in float32, rounded once."""
    total = torch.zeros(own.x.shape)
    for other in range(size):
        here = own.ids // (EXPERTS // size) == other
        share = _experts(own.x, torch.where(here, own.weights, 0.0), other)
        total += torch.where(here.any(dim=1, keepdim=True), share.float(), 0.0)
    return total.to(own.x.dtype)


def _micro_batches(manager: Any, rank: int, size: int) -> bool:
    """Two in flight at once, as dual-batch overlap has them; combined in either order."""
    current = SimpleNamespace(batch=0)
    stock = module.dbo_current_ubatch_id
    module.dbo_current_ubatch_id = lambda: current.batch
    right = True
    try:
        for order in ((0, 1), (1, 0)):
            given = [_new((6, 4), torch.bfloat16) for _ in range(2)]
            results = []
            for current.batch in (0, 1):
                rows = _dispatch(manager, given[current.batch][rank], False, False)
                results.append(_experts(rows[0], rows[1], rank))
            for current.batch in order:
                out = manager.combine(results[current.batch])
                right &= torch.equal(out, _expected(given[current.batch][rank], rank, size))
    finally:
        module.dbo_current_ubatch_id = stock
    return right


def _after_exception(manager: Any, rank: int, size: int) -> bool:
    """A dispatch that no combine followed, on any rank."""
    _dispatch(manager, _new((3, 3), torch.bfloat16)[rank], False, False)
    return _one(manager, rank, size, (4, 4), torch.bfloat16, False, True)


def _foreign(manager: Any, rank: int) -> bool:
    """The id that stands for other ranks' experts is one that this rank does not have."""
    (stands,) = manager._global(torch.tensor([-1])).tolist()
    per_rank = EXPERTS // manager.world_size
    return bool(0 <= stands < EXPERTS and stands // per_rank != rank)


def _refused(manager: Any, rank: int) -> dict[str, str]:
    own = _new((2, 2), torch.bfloat16)[rank]
    half = own._replace(x=own.x.half())
    tp_group, manager.tp_group = manager.tp_group, SimpleNamespace(world_size=2)
    try:
        copies = common.raised(lambda: _dispatch(manager, own, False, False))
    finally:
        manager.tp_group = tp_group
    return {
        "dtype": common.raised(lambda: _dispatch(manager, half, False, False)),
        "tensor_parallel": copies,
    }
