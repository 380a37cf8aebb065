"""moewire.ops: how handles and buffers are named, and what is refused. test_compile.py compiles."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

import moewire
from moewire import autograd, ops
from moewire.ops import _tables

T, K, E, H, M = 3, 2, 4, 8, 4
X = torch.ones(T, H, dtype=torch.bfloat16)
IDS, WEIGHTS = torch.arange(T * K).reshape(T, K) % E, torch.ones(T, K)


@pytest.fixture
def buffer() -> Iterator[moewire.Buffer]:
    size = autograd.get_flat_buffer_size_hint(M, H, 1, K)
    with moewire.Buffer.from_exchange(lambda own: [own], 0, 1, size) as made:
        yield made


@pytest.fixture
def number(buffer: moewire.Buffer) -> int:
    return ops.register(buffer)


def test_a_handle_lives_as_long_as_its_memory(number: int) -> None:
    handle = ops.make_routing(number, IDS, E)
    routing, copied = _tables.held_by(handle).routing, handle.clone()  # type: ignore[attr-defined]
    same_memory = handle.view(1)
    del handle
    assert ops.scatter(same_memory, X)[0].shape == (T, H)
    learns = X.clone().requires_grad_()
    rows, _ = ops.scatter(same_memory, learns)
    del same_memory
    assert _tables.num_handles() == 1  # of the graph
    rows.sum().backward()
    assert learns.grad is not None and torch.equal(learns.grad, X)
    del rows, routing
    assert _tables.num_handles() == 0
    with pytest.raises(moewire.UnknownHandleError, match="handle: it has ended with its tensor"):
        ops.scatter(copied, X)


def test_a_dropped_dispatch_gives_its_slot_up(number: int) -> None:
    for _ in range(5):
        ops.dispatch(number, X, IDS, WEIGHTS, M, E)
    kept = [ops.dispatch(number, X, IDS, WEIGHTS, M, E) for _ in range(2)]
    with pytest.raises(moewire.BusyError, match="num_slots=2"):
        ops.dispatch(number, X, IDS, WEIGHTS, M, E)
    out = ops.combine(kept[1][3], kept[1][0], T)
    assert torch.equal(out, X)


def test_handles_are_bounded(
    buffer: moewire.Buffer, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = _tables.num_handles() + 2  # a traceback may hold some
    monkeypatch.setattr(_tables, "MAX_HANDLES", most)
    kept = [ops.make_routing(number, IDS, E) for _ in range(2)]
    with pytest.raises(moewire.BusyError, match=f"{most} handles are alive"):
        ops.make_routing(number, IDS, E)
    before = buffer.counters()
    with pytest.raises(moewire.BusyError, match=f"{most} handles are alive"):
        ops.dispatch(number, X, IDS, WEIGHTS, M, E)
    assert buffer.counters() == before, "something was sent"
    del kept[0]
    ops.make_routing(number, IDS, E)


def test_a_buffer_without_room_for_the_backward() -> None:
    """It is refused before anything is sent, where a gradient is asked for."""
    num_max, hidden, topk = 20_000, 512, 8
    small = moewire.Buffer.get_flat_buffer_size_hint(num_max, hidden, 1, topk)
    ids, x = torch.zeros(T, topk, dtype=torch.int64), torch.ones(T, hidden).bfloat16()
    weights = torch.ones(T, topk)
    with moewire.Buffer.from_exchange(lambda own: [own], 0, 1, small) as one:
        number = ops.register(one)
        before = one.counters()
        for given in ((x.clone().requires_grad_(), weights), (x, weights.clone().requires_grad_())):
            call = (number, given[0], ids, given[1], num_max, E)
            with pytest.raises(moewire.InvalidArgument, match=f"num_ep_buffer_bytes={small} given"):
                ops.dispatch(*call)
            assert one.counters() == before, "something was sent"
            with torch.no_grad():
                ops.dispatch(*call)
            before = one.counters()


def test_nothing_is_sent_while_a_stream_is_captured(
    buffer: moewire.Buffer, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _, _, handle = ops.dispatch(number, X, IDS, WEIGHTS, M, E)
    with monkeypatch.context() as patch:
        patch.setattr(buffer.runtime.place, "recording", lambda: True)
        before = buffer.counters()
        for call in (
            lambda: ops.dispatch(number, X, IDS, WEIGHTS, M, E),
            lambda: ops.combine(handle, rows, T),
        ):
            with pytest.raises(moewire.UnsupportedError, match="captured into a graph"):
                call()
        assert buffer.counters() == before
    assert torch.equal(ops.combine(handle, rows, T), X)


def test_buffers_are_bounded_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> moewire.Buffer:
        return moewire.Buffer.from_exchange(lambda own: [own], 0, 1)

    one, two = made(), made()
    number = ops.register(one)
    monkeypatch.setattr(_tables, "MAX_BUFFERS", len(_tables._buffers))
    with pytest.raises(moewire.BusyError, match="buffers are registered"):
        ops.register(two)
    del one
    gc.collect()
    with pytest.raises(moewire.InvalidArgument, match=f"buffer: {number} given; allowed: what m"):
        ops.make_routing(number, IDS, E)
    ops.register(two)
    with pytest.raises(moewire.InvalidArgument, match="buffer: NoneType given; allowed: a moewire"):
        ops.register(None)  # type: ignore[arg-type]


def test_what_is_wrong_is_named(number: int) -> None:
    routing = ops.make_routing(number, IDS, E)
    rows, _, _, handle = ops.dispatch(number, X, IDS, WEIGHTS, M, E)
    calls: dict[str, Callable[[], object]] = {
        "handle: shape .3, 2. given; allowed: shape .1.": lambda: ops.scatter(IDS, X),
        "handle: one of dispatch given; allowed: what make_r": lambda: ops.scatter(handle, X),
        "handle: one of make_routing given; allowed: what d": lambda: ops.combine(routing, rows, T),
        "num_tokens: 2 given; allowed: the dispatch's 3": lambda: ops.combine(handle, rows, 2),
        "y: shape .3, 8. given; allowed: shape .4, 8.": lambda: ops.combine(handle, rows[:3], T),
        "y: shape .4, 4. given; allowed: shape .4, 8.": lambda: ops.combine(handle, rows[:, :4], T),
        "y: dtype torch.float32 given; allowed: dtype torch.bfloat16": lambda: ops.combine(
            handle, rows.float(), T
        ),
        "x: dtype torch.float16 given; allowed: dtype torch.bfloat16$": lambda: ops.dispatch(
            number, X.half(), IDS, WEIGHTS, M, E
        ),
        "x: dtype torch.float16 given; allowed: dtype torch.bfloat16, to": lambda: ops.scatter(
            routing, X.half()
        ),
        "x: dtype torch.float32 given; allowed: dtype torch.bfloat16$": lambda: ops.scatter(
            routing, X.float(), expanded=True
        ),
        "x: hidden size 4 given": lambda: ops.scatter(routing, X.float()[:, :4]),
        "y: hidden size 4 given": lambda: ops.gather(routing, X.float()[:, :4], T),
        "y: shape .. given; allowed: shape .3, any": lambda: ops.gather(routing, X[0, 0], T),
        "topk_weights: dtype torch.int64 given; allowed: dtype torch.float32": lambda: ops.scatter(
            routing, X, WEIGHTS.long()
        ),
        "topk_weights: float given; allowed: dtype torch.float32": lambda: ops.scatter(
            routing,
            X,
            1.0,  # type: ignore[arg-type]
        ),
        "y: dtype torch.float16 given; allowed: dtype torch.bfloat16, to": lambda: ops.gather(
            routing, X.half(), T
        ),
    }
    for words, call in calls.items():
        with pytest.raises(moewire.InvalidArgument, match=words):
            call()
    before = _tables.held_by(routing).buffer.counters()  # type: ignore[attr-defined]
    for num in (-1, 1 << 31):
        with pytest.raises(moewire.InvalidArgument, match=f"num_rows: {num} given; allowed: 0 to"):
            ops.scatter(routing, X, num_rows=num)
    assert _tables.held_by(routing).buffer.counters() == before  # type: ignore[attr-defined]
    ops.combine(handle, rows, T)
    calls = {
        "handle: one that was combined given; allowed: each o": lambda: ops.combine(
            handle, rows, T
        ),
        "num_rows: 2 given; allowed: at least the 3 rows that came": lambda: ops.scatter(
            routing, X, num_rows=2
        ),
        "num_tokens: 2 given; allowed: the routing's 3": lambda: ops.gather(routing, X, 2),
        "y: 2 rows given; allowed: at least the 3 that": lambda: ops.gather(routing, X[:2], T),
        "num_topk: 3 given; allowed: the routing's 2": lambda: ops.recv_topk_idx(routing, T, 3),
        "num_rows: 2 given; allowed: at least the 3 that": lambda: ops.recv_topk_idx(routing, 2, K),
        "num_local_experts: 3 given; allowed: the routing's 4": lambda: ops.counts(routing, 3),
    }
    for words, call in calls.items():
        with pytest.raises(moewire.InvalidArgument, match=words):
            call()


def test_rows_that_did_not_come_are_zeros(number: int) -> None:
    handle = ops.make_routing(number, IDS, E)
    rows, weights = ops.scatter(handle, X, WEIGHTS.bfloat16(), num_rows=5)
    assert weights is not None and torch.equal(weights, torch.cat([WEIGHTS, torch.zeros(2, K)]))
    assert torch.equal(rows, torch.cat([X, torch.zeros(2, H).bfloat16()]))
    assert ops.recv_topk_idx(handle, 5, K).tolist() == [*IDS.tolist(), [-1, -1], [-1, -1]]
    assert ops.counts(handle, E).tolist() == IDS.flatten().bincount(minlength=E).tolist()
    assert torch.equal(ops.gather(handle, rows, T), X)
    rows, local, sent, opened = ops.dispatch(number, X, IDS.int(), WEIGHTS, M, E)
    assert torch.equal(rows[T:], torch.zeros(M - T, H).bfloat16()) and not sent[T:].any()
    assert local.tolist() == [*IDS.tolist(), [-1, -1]]
    assert torch.equal(ops.combine(opened, rows, T), X)


def test_gradients_have_the_dtype_of_the_weights(number: int) -> None:
    learns = WEIGHTS.bfloat16().requires_grad_()
    x = X.clone().requires_grad_()
    rows, _, sent, handle = ops.dispatch(number, x, IDS, learns, M, E)
    out = ops.combine(handle, (rows.float() * sent.sum(1, keepdim=True)).bfloat16(), T)
    out.float().sum().backward()
    assert learns.grad is not None and learns.grad.dtype is torch.bfloat16
    assert torch.equal(learns.grad.float(), torch.full((T, K), float(H)))
    assert x.grad is not None and torch.equal(x.grad, torch.full_like(X, K))


def test_collectives_keep_their_order() -> None:
    """Of one graph, also where they do not depend on one another; torch 2.15 can be told that."""
    from torch._library.simple_registry import singleton

    for name, collective in (("dispatch", True), ("gather", True), ("counts", False)):
        found = singleton.find(f"moewire::{name}").effect.effect
        assert (found is not None) == collective, (name, found)
