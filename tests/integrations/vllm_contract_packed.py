"""``BatchedPrepareAndFinalize``: rows expert by expert in, weighted sums out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
import vllm_contract as common
from vllm.distributed import get_ep_group
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import (
    TopKWeightAndReduceDelegate,
    TopKWeightAndReduceNoOP,
)
from vllm_contract import DTYPES, EXPERTS, HIDDEN, NUM_TOKENS, TOPK, Tokens

from moewire.integrations.vllm import _sizes
from moewire.integrations.vllm import batched as module

MOST = 40
PLAIN = SimpleNamespace(quant_dtype=None)
_case = 0


def check(rank: int, size: int) -> dict[str, Any]:
    """Wrong cases by name; what was refused, in words."""
    exchanges = {dtype: _exchange(size, dtype) for dtype in DTYPES}
    wrong = [
        f"{counts} {dtype} asynchronous={asynchronous}"
        for counts, dtype, asynchronous in product(NUM_TOKENS, DTYPES, (False, True))
        if not _one(exchanges[dtype], rank, size, counts, asynchronous)
    ]
    plain = exchanges[torch.bfloat16]
    return {
        "wrong": wrong,
        "micro_batches": all(_micro_batches(one, rank, size) for one in exchanges.values()),
        "after_exception": _after_exception(plain, rank, size),
        "on_input": _on_input(size, rank),
        "refused": _refused(plain, rank),
    }


def _exchange(size: int, dtype: torch.dtype, num_topk: int = TOPK) -> Any:
    sizes = _sizes.Sizes(size, EXPERTS, MOST, HIDDEN, num_topk, dtype)
    return module.BatchedPrepareAndFinalize(sizes, get_ep_group().cpu_group)


def _one(exchange: Any, rank: int, size: int, counts: tuple[int, ...], later: bool) -> bool:
    given = _new(counts, exchange.sizes.dtype)
    rows, results = _forward(exchange, given[rank], rank, size, later)
    right = _arrived(*rows, given, rank, size)
    return right and torch.equal(
        _back(exchange, given[rank], results, later), _expected(given[rank])
    )


def _new(counts: tuple[int, ...], dtype: torch.dtype) -> list[Tokens]:
    global _case
    _case += 1
    return common.all_tokens(counts, dtype, 10_000 + _case)


def _arguments(own: Tokens, on_input: bool = False) -> tuple[Any, ...]:
    return (own.x, own.weights, own.ids.long(), EXPERTS, None, on_input, PLAIN)


def _forward(exchange: Any, own: Tokens, rank: int, size: int, later: bool) -> Any:
    if later:
        hook, receiver = exchange.prepare_async(*_arguments(own))
        hook()
        x, scales, meta, ids, weights = receiver()
    else:
        x, scales, meta, ids, weights = exchange.prepare(*_arguments(own))
    assert scales is None and ids is None and weights is None
    assert x.shape == (EXPERTS // size, size * MOST, HIDDEN)
    counts = meta.expert_num_tokens.tolist()
    return (x, counts), _experts(x, counts, rank, size)


def _experts(x: torch.Tensor, counts: list[int], rank: int, size: int) -> torch.Tensor:
    """Each expert multiplies by a number of its own; NaN where there is no row."""
    results = torch.full_like(x, torch.nan)
    for expert, count in enumerate(counts):
        results[expert, :count] = _expert(x[expert, :count], rank * EXPERTS // size + expert)
    return results


def _expert(x: torch.Tensor, expert: int) -> torch.Tensor:
    return (x.float() * (1 + expert / 7)).to(x.dtype)


def _arrived(x: torch.Tensor, counts: list[int], given: list[Tokens], rank: int, size: int) -> bool:
    """Each expert's tokens, in any order."""
    for expert, count in enumerate(counts):
        number = rank * EXPERTS // size + expert
        expected = [
            source.x[t].tolist()
            for source in given
            for t in range(len(source.x))
            if number in source.ids[t].tolist()
        ]
        if sorted(x[expert, :count].tolist()) != sorted(expected):
            return False
    return True


def _back(exchange: Any, own: Tokens, results: torch.Tensor, later: bool) -> torch.Tensor:
    out = torch.empty_like(own.x)
    delegate = TopKWeightAndReduceDelegate()
    arguments = (out, results, own.weights, own.ids.long(), False, delegate)
    if later:
        for call in exchange.finalize_async(*arguments):
            call()
    else:
        exchange.finalize(*arguments)
    return out


def _expected(own: Tokens) -> torch.Tensor:
    """Multiplied and added in float32, in the order of the selections; rounded once."""
    total = torch.zeros(own.x.shape)
    for t, k in product(range(len(own.x)), range(TOPK)):
        total[t] += own.weights[t, k] * _expert(own.x[t], int(own.ids[t, k])).float()
    return total.to(own.x.dtype)


@contextmanager
def _as_micro_batch() -> Iterator[SimpleNamespace]:
    current = SimpleNamespace(batch=0)
    stock = module.dbo_current_ubatch_id
    module.dbo_current_ubatch_id = lambda: current.batch
    try:
        yield current
    finally:
        module.dbo_current_ubatch_id = stock


def _micro_batches(exchange: Any, rank: int, size: int) -> bool:
    """d(0) d(1) receive(0) receive(1) c(0) c(1), as dual-batch overlap does it."""
    given = [_new((6, 4), exchange.sizes.dtype) for _ in range(2)]
    with _as_micro_batch() as current:
        sent, outs = [], []
        for current.batch in (0, 1):
            sent.append(exchange.prepare_async(*_arguments(given[current.batch][rank])))
        for current.batch in (0, 1):
            hook, receiver = sent[current.batch]
            hook()
            x, _, meta, _, _ = receiver()
            results = _experts(x, meta.expert_num_tokens.tolist(), rank, size)
            outs.append(_back(exchange, given[current.batch][rank], results, True))
    return all(torch.equal(out, _expected(one[rank])) for out, one in zip(outs, given, strict=True))


def _after_exception(exchange: Any, rank: int, size: int) -> bool:
    """A prepare that no finalize followed, on any rank."""
    exchange.prepare(*_arguments(_new((3, 3), torch.bfloat16)[rank]))
    return _one(exchange, rank, size, (4, 4), False)


def _on_input(size: int, rank: int) -> bool:
    """One selection per token: the input is scaled, the result is not."""
    exchange = _exchange(size, torch.bfloat16, 1)
    own = _new((5, 8), torch.bfloat16)[rank]
    own = own._replace(ids=own.ids[:, :1].contiguous(), weights=own.weights[:, :1].contiguous())
    x, _, meta, _, _ = exchange.prepare(*_arguments(own, on_input=True))
    out = torch.empty_like(own.x)
    results = _experts(x, meta.expert_num_tokens.tolist(), rank, size)
    delegate = TopKWeightAndReduceDelegate()
    exchange.finalize(out, results, own.weights, own.ids.long(), True, delegate)
    scaled = own.x * own.weights.to(own.x.dtype)
    expected = [_expert(scaled[t], int(own.ids[t, 0])) for t in range(len(scaled))]
    return torch.equal(out, torch.stack(expected))


def _refused(exchange: Any, rank: int) -> dict[str, str]:
    own = _new((2, 2), torch.bfloat16)[rank]
    fp8 = (*_arguments(own)[:-1], SimpleNamespace(quant_dtype=torch.float8_e4m3fn))
    results = torch.empty((EXPERTS // 2, 2 * MOST, HIDDEN), dtype=torch.bfloat16)
    back = (own.x, results, own.weights, own.ids.long(), False, TopKWeightAndReduceNoOP())
    return {
        "quantised": common.raised(lambda: exchange.prepare(*fp8)),
        "on_input": common.raised(lambda: exchange.prepare(*_arguments(own, on_input=True))),
        "reduction": common.raised(lambda: exchange.finalize(*back)),
    }
