"""torch.compile around every call: a clean break of the graph, and nothing of moewire compiled.

Runs in this repository's environment and, by hand, in those of older versions of torch.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import moewire
from moewire import autograd
from moewire._cpu import engine, operation
from moewire._ep import combine, dispatch, routed, routing
from moewire._ep import flat as _flat
from moewire._ep import packed as _packed
from moewire.autograd import _backward
from moewire.autograd import _flat as _flat_gradients
from moewire.autograd import _routed as _routed_gradients
from moewire.compat._mooncake import Buffer as MooncakeBuffer
from moewire.deep_ep import Buffer as DeepEPBuffer
from moewire.deep_ep import ElasticBuffer, _elastic_calls, _normal, _routed

TOKENS, HIDDEN, EXPERTS, TOPK = 8, 128, 4, 2
Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Compiled = list[torch.fx.GraphModule]
SIZES = (TOKENS, TOKENS - 1, TOKENS - 3, TOKENS)  # the second one makes T a symbol
# Number of calls of Moewire in each layer.
CALLS = {
    "packed": 2,
    "in_place": 3,
    "hooks": 5,
    "flat": 4,
    "mooncake": 2,
    "deep_ep": 3,
    "gradients": 2,
    "flat_gradients": 2,
    "routed_gradients": 3,
    "routings": 4,
    "normal": 3,
    "elastic": 2,
}
LEARN = ("gradients", "flat_gradients", "routed_gradients")  # forward and backward


def layers(group: dist.ProcessGroup) -> dict[str, Layer]:
    buffer = moewire.Buffer(group, 64 << 20)
    mooncake = MooncakeBuffer(group, device="cpu")
    deep_ep = DeepEPBuffer(group, low_latency_mode=True, device="cpu")
    elastic_ep = ElasticBuffer(group, num_max_tokens_per_rank=TOKENS, hidden=HIDDEN, device="cpu")

    def packed(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows, _, handle, _, _ = buffer.dispatch(x * 2, ids, None, TOKENS, EXPERTS, -1, False)
        return buffer.combine(rows * 3, ids, weights, None, -1, handle)[0] + 1

    def in_place(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows, _, handle, _, _ = buffer.dispatch(x * 2, ids, None, TOKENS, EXPERTS, -1, False)
        y = buffer.get_next_combine_buffer(handle)
        y.copy_(rows * 3)
        return buffer.combine(y, ids, weights, None, -1, handle, zero_copy=True)[0] + 1

    def hooks(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows, _, handle, _, hook = buffer.dispatch(
            x * 2, ids, None, TOKENS, EXPERTS, -1, False, return_recv_hook=True
        )
        hook()
        out, event, _ = buffer.combine(rows * 3, ids, weights, None, -1, handle, async_finish=True)
        event.current_stream_wait()
        handle.release()
        return out + 1

    def flat(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        got = buffer.dispatch_flat(x * 2, ids, weights, TOKENS, EXPERTS)
        sums = got.recv_topk_weights.sum(1, keepdim=True)
        return buffer.combine_flat((got.recv_x * sums).bfloat16(), got.handle)[0] + 1

    def foreign(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows, _, handle, _, _ = mooncake.dispatch(x * 2, ids, None, TOKENS, EXPERTS, -1, False)
        return mooncake.combine(rows * 3, ids, weights, None, -1, handle)[0] + 1

    def low_latency(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows, _, handle, _, hook = deep_ep.low_latency_dispatch(
            x * 2, ids, TOKENS, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        hook()
        return deep_ep.low_latency_combine(rows * 3, ids, weights, handle)[0] + 1

    def gradients(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows, routing = autograd.dispatch(buffer, x * 2, ids, weights, None, TOKENS, EXPERTS, -1)
        return autograd.combine(rows * 3, routing) + 1

    def flat_gradients(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows, routing = autograd.dispatch_flat(buffer, x * 2, ids, weights, TOKENS, EXPERTS)
        sums = routing.topk_weights.sum(1, keepdim=True)
        return autograd.combine_flat((rows * sums).bfloat16(), routing) + 1

    def routed_gradients(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        routing = buffer.make_routing(ids, EXPERTS)
        rows, sent = autograd.scatter(buffer, routing, x * 2, weights, expanded=True)
        return (
            autograd.gather(buffer, routing, (rows * sent[:, None]).bfloat16(), expanded=True) + 1
        )

    def routings(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        routing = buffer.make_routing(ids, EXPERTS)
        rows, sent, _ = buffer.scatter(routing, x * 2, topk_weights=weights)
        out, back = buffer.gather(routing, rows * 3, topk_weights=sent * 2)
        widened, _ = buffer.gather(routing, rows.float())
        return out * back.sum(1, keepdim=True) + widened

    def normal(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        per_rank, _, per_expert, in_rank, _ = deep_ep.get_dispatch_layout(ids, EXPERTS)
        rows, _, sent, _, handle, _ = deep_ep.dispatch(
            x * 2,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=ids,
            topk_weights=weights,
        )
        out, back, _ = deep_ep.combine(rows * 3, handle, topk_weights=sent * 2)
        return out * back.sum(1, keepdim=True) + 1

    def elastic(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows, _, sent, handle, _ = elastic_ep.dispatch(
            x * 2, ids, weights, num_experts=EXPERTS, do_expand=True
        )
        out, _, _ = elastic_ep.combine((rows * sent[:, None]).bfloat16(), handle)
        return out + 1

    return {
        "packed": packed,
        "in_place": in_place,
        "hooks": hooks,
        "flat": flat,
        "mooncake": foreign,
        "deep_ep": low_latency,
        "gradients": gradients,
        "flat_gradients": flat_gradients,
        "routed_gradients": routed_gradients,
        "routings": routings,
        "normal": normal,
        "elastic": elastic,
    }


def inputs(num_tokens: int, learns: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(7)
    x = torch.randn(num_tokens, HIDDEN, generator=random).bfloat16()
    ids = torch.rand(num_tokens, EXPERTS, generator=random).topk(TOPK).indices.contiguous()
    weights = torch.rand(num_tokens, TOPK, generator=random)
    if learns:
        x.requires_grad_(), weights.requires_grad_()
    return x, ids, weights


def results(layer: Layer, num_tokens: int, learns: bool) -> list[torch.Tensor]:
    x, ids, weights = inputs(num_tokens, learns)
    out = layer(x, ids, weights)
    if not learns:
        return [out]
    out.float().sum().backward()
    assert x.grad is not None and weights.grad is not None
    return [out.detach(), x.grad, weights.grad]


def check(name: str, layer: Layer) -> str:
    """The layer's results, compiled and not, and what was compiled for it."""
    from torch._dynamo.utils import counters

    graphs: Compiled = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    counters.clear()
    compiled, begin = torch.compile(layer, backend=backend), time.perf_counter()
    num_graphs, seconds = [], 0.0
    for size in SIZES:
        learns = name in LEARN
        got, want = results(compiled, size, learns), results(layer, size, learns)
        assert all(torch.equal(one, other) for one, other in zip(got, want)), (name, size)  # noqa: B905
        num_graphs.append(len(graphs))
        seconds = seconds or time.perf_counter() - begin
    reasons = counters["graph_break"]
    assert reasons and all("disable" in reason for reason in reasons), dict(reasons)
    # One graph more than calls at most, for a size and for all others.
    assert 1 <= num_graphs[0] <= CALLS[name] + 1, (name, num_graphs)
    assert num_graphs[1] <= 2 * num_graphs[0] and num_graphs[1:] == [num_graphs[1]] * 3, num_graphs
    return f"{name} {num_graphs[0]} graphs in {seconds:.2f} s"


def nothing_of_ours() -> None:
    """No frame of the package was compiled, not even one that a marked function calls."""
    entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list
    modules = [_packed, dispatch, combine, _flat, engine, operation, routed, routing]
    modules += [_backward, _flat_gradients, _routed_gradients, _elastic_calls, _normal, _routed]
    codes = [
        member.__code__
        for module in modules
        for member in vars(module).values()
        if hasattr(member, "__code__") and member.__module__ == module.__name__
    ]
    codes += [dispatch.Request.__new__.__code__, _packed.PackedCalls.dispatch.__code__]
    codes += [
        method.__code__ for method in vars(engine.Cpu).values() if hasattr(method, "__code__")
    ]
    assert len(codes) > 40
    assert not [code for code in codes if entries(code)]


def main() -> None:
    assert "torch._dynamo" not in sys.modules, "loaded by an import of moewire"
    folder = tempfile.mkdtemp()
    store = dist.FileStore(os.path.join(folder, "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    made = layers(group)
    loaded = "torch._dynamo" in sys.modules  # by torch's own ways to begin
    for name, layer in made.items():
        if name not in LEARN:
            results(layer, TOKENS, False)
    assert loaded or "torch._dynamo" not in sys.modules, "loaded by a call"
    import torch._dynamo

    print("torch", torch.__version__)
    for name, layer in made.items():
        print(check(name, layer), flush=True)
        nothing_of_ours()
    gc.collect()
    dist.destroy_process_group()
    print("compiled: ok")


if __name__ == "__main__":
    main()
