"""Two micro-batches in flight, as vLLM's dual-batch overlap has them, on ranks without a model.

Each runs in a thread of its own; vLLM's own contexts switch between them, and for the packed
exchange vLLM's own kernel makes the calls. Only streams are stand-ins, and the experts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
import vllm_contract as common
import vllm_contract_flat as flat
import vllm_contract_packed as packed
import vllm_fakes as fakes
from vllm import forward_context
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG
from vllm.v1.worker import ubatching
from vllm_contract import DTYPES, EXPERTS, HIDDEN, TOPK, Tokens

import moewire.integrations.vllm as plugin
from moewire.integrations.vllm import _sizes
from moewire.integrations.vllm.batched import BatchedPrepareAndFinalize
from moewire.integrations.vllm.cpu_experts import CPUBatchedExperts

LAYERS = 3
MOST = 16
COUNTS = (6, 4)  # tokens of each rank in each micro-batch, so that swapped handles fit
_SECONDS = 60
# Both micro-batches send nine rows to either rank, of other tokens: only the results tell which
# batch the rows belong to.
_CASE = 51_788

_thread = threading.local()


def in_packed_form(swap: bool) -> dict[str, Any]:
    """Layers after one another, for both types of rows; ``swap``: of handles, once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    answer: dict[str, Any] = {"trace": []}
    for dtype in DTYPES:
        layers = [_layer(rank, size, dtype) for _ in range(LAYERS)]
        if dtype == DTYPES[0]:
            _traced(layers[0].prepare_finalize, answer["trace"])
        if swap:
            _swap_before(layers[0].prepare_finalize, "finalize_async", _swap_packed)
        given = [_tokens(batch, dtype)[rank] for batch in (0, 1)]
        outs = _overlapped([partial(_forward, layers, own) for own in given])
        answer[str(dtype)] = [
            torch.equal(out, _through_layers(own)) for out, own in zip(outs, given, strict=True)
        ]
        answer["open"] = sum(len(one.prepare_finalize.handles) for one in layers)
    return {**answer, **_counts()}


def in_flat_form(swap: bool) -> dict[str, Any]:
    """The manager's, where vLLM keeps no handle: ``swap`` exchanges what it remembers."""
    rank, size = dist.get_rank(), dist.get_world_size()
    manager = fakes.manager(dist.group.WORLD, EXPERTS, max_tokens=MOST)
    if swap:
        _swap_before(manager, "combine", _swap_flat)
    answer: dict[str, Any] = {}
    for dtype in DTYPES:
        given = [_tokens(batch, dtype) for batch in (0, 1)]
        outs = _overlapped(
            [partial(_dispatch_and_combine, manager, own[rank], rank) for own in given]
        )
        answer[str(dtype)] = [
            torch.equal(out, flat._expected(own[rank], rank, size))
            for out, own in zip(outs, given, strict=True)
        ]
    answer |= {"open": len(manager._sent), **_counts()}
    manager.destroy()
    return answer


def _dispatch_and_combine(manager: Any, own: Tokens, rank: int) -> torch.Tensor:
    """The other micro-batch runs between any two of its parts."""
    x, weights, _ = manager.dispatch(own.x, own.weights, own.ids)
    ubatching.dbo_yield()
    results = flat._experts(x, weights, rank)
    ubatching.dbo_yield()
    out: torch.Tensor = manager.combine(results)
    return out


def _tokens(batch: int, dtype: torch.dtype) -> list[Tokens]:
    return common.all_tokens(COUNTS, dtype, _CASE + batch)


def _through_layers(own: Tokens) -> torch.Tensor:
    """What layer after layer gives, by loops."""
    for _ in range(LAYERS):
        own = own._replace(x=packed._expected(own))
    return own.x


def _forward(layers: list[Any], own: Tokens) -> torch.Tensor:
    weights = torch.empty((EXPERTS // dist.get_world_size(), 2, HIDDEN))
    x = own.x
    for layer in layers:
        x = layer.apply(
            hidden_states=x,
            w1=weights,
            w2=weights,
            topk_ids=own.ids.long(),
            topk_weights=own.weights,
            global_num_experts=EXPERTS,
        )
    return x


class _Experts(CPUBatchedExperts):
    """Each multiplies by a number of its own: exact, whatever the order of the rows."""

    first = 0  # the number of this rank's first one

    def apply(self, output: Any, hidden_states: Any, *, expert_tokens_meta: Any, **_: Any) -> None:
        output.fill_(torch.nan)
        for expert, count in enumerate(expert_tokens_meta.expert_num_tokens.tolist()):
            rows = hidden_states[expert, :count]
            output[expert, :count] = packed._expert(rows, self.first + expert)


def _layer(rank: int, size: int, dtype: torch.dtype) -> Any:
    """vLLM's own kernel around an exchange of ours."""
    sizes = _sizes.Sizes(size, EXPERTS, MOST, HIDDEN, TOPK, dtype)
    exchange = BatchedPrepareAndFinalize(sizes, dist.group.WORLD)
    config = fakes.layer_config(rank, size, EXPERTS, HIDDEN, dtype)
    experts = _Experts(
        config,
        FUSED_MOE_UNQUANTIZED_CONFIG,
        max_num_tokens=exchange.max_num_tokens_per_rank(),
        num_dispatchers=exchange.num_dispatchers(),
    )
    experts.first = rank * EXPERTS // size
    return mk.FusedMoEKernel(exchange, experts).impl


def _overlapped(bodies: list[Callable[[], torch.Tensor]]) -> list[torch.Tensor]:
    """Each as a micro-batch of one step; what they gave, in their order."""
    stream = torch.cuda.Stream()  # vLLM's stand-in
    ubatching.current_stream = lambda: stream
    barrier = threading.Barrier(len(bodies) + 1)
    steps = [object() for _ in bodies]
    contexts = ubatching.make_ubatch_contexts(len(bodies), stream, stream, steps, barrier)

    def run(context: Any, body: Callable[[], torch.Tensor]) -> torch.Tensor:
        _thread.batch = context.id
        with context:
            return body()

    with ThreadPoolExecutor(len(bodies)) as pool:
        running = [pool.submit(run, *pair) for pair in zip(contexts, bodies, strict=True)]
        barrier.wait(_SECONDS)
        contexts[0].cpu_wait_event.set()
        outs = [one.result(_SECONDS) for one in running]
    forward_context._forward_context = None
    return outs


def _traced(exchange: Any, trace: list[str]) -> None:
    """Notes each step of each micro-batch, and which batch's thread takes it."""

    def noted(step: str, batch: int, call: Callable[[], Any]) -> Callable[[], Any]:
        def take() -> Any:
            trace.append(f"{step} {batch} by {_thread.batch}")
            return call()

        return take

    def wrap(name: str, word: str) -> None:
        stock = getattr(exchange, name)

        def start(*arguments: Any, **named: Any) -> Any:
            batch = _thread.batch
            hook, receiver = stock(*arguments, **named)
            trace.append(f"{word} {batch} by {batch}")
            return noted(f"{word} ends", batch, hook), noted(f"{word} read", batch, receiver)

        setattr(exchange, name, start)

    wrap("prepare_async", "dispatch")
    wrap("finalize_async", "combine")


def _swap_before(owner: Any, name: str, swap: Callable[[Any], None]) -> None:
    """Before the first call of a method: both micro-batches were dispatched by then."""
    stock, done = getattr(owner, name), []

    def call(*arguments: Any, **named: Any) -> Any:
        if not done:
            done.append(swap(owner))
        return stock(*arguments, **named)

    setattr(owner, name, call)


def _swap_packed(exchange: Any) -> None:
    exchange.handles[0], exchange.handles[1] = exchange.handles[1], exchange.handles[0]


def _swap_flat(manager: Any) -> None:
    manager._sent[0], manager._sent[1] = manager._sent[1], manager._sent[0]


def _counts() -> dict[str, int]:
    found = [buffer.counters() for buffer in plugin.buffers()]
    names = ("num_dispatches", "num_combines")
    return {name: sum(one[name] for one in found) for name in names}
