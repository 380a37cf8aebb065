"""The parts of the vLLM plug-in that need no vLLM, against loops."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integration_ranks import run

from moewire import InvalidArgument, UnsupportedError
from moewire.integrations import _buffers, _devices, _engines, _plugin
from moewire.integrations.vllm import (
    _flat,
    _float32,
    _lost,
    _patches,
    _place,
    _platform,
    _sizes,
    repairs,
)
from moewire.integrations.vllm._replacement import Replacement

FLOATS = st.floats(-(2.0**127), 2.0**127, width=32)


@given(st.lists(FLOATS, min_size=8, max_size=8))
def test_three_parts_of_a_float32_add_up_to_it(values: list[float]) -> None:
    results = torch.tensor([values])
    results[results.abs() < 1e-30] = 0  # its last part might not be a bf16 any more
    parts = torch.empty((1, 24), dtype=torch.bfloat16)
    _float32.split(results, parts)
    assert torch.equal(_float32.merge(parts), results)


def test_infinities_and_nan_come_back_as_themselves() -> None:
    """And in combined rows: zeros of other selections are added to each part."""
    results = torch.tensor([[float("inf"), -float("inf"), float("nan"), 1.5, 3e38, 0.0, -7.0, 1.0]])
    parts = torch.empty((1, 24), dtype=torch.bfloat16)
    _float32.split(results, parts)
    found = _float32.merge(parts + 0.0)
    assert torch.equal(found.isnan(), results.isnan())
    assert torch.equal(found.nan_to_num(5.0), results.nan_to_num(5.0))


def test_a_float32_row_travels_as_its_bytes() -> None:
    x = torch.randn((5, 16))
    x[2, 3], x[4, 0] = float("nan"), float("-inf")
    rows = _float32.outgoing(x, 3)
    assert rows.shape == (15, 48)
    for copy in range(3):
        found = _float32.incoming(rows[copy::3], 16)
        assert found.numpy().tobytes() == x.numpy().tobytes()


@pytest.mark.parametrize("num_rows", [0, 1, 2])
def test_rows_lie_densely(num_rows: int) -> None:
    """vLLM's kernels look at strides, even that of a single row."""
    rows = torch.empty((num_rows, 48), dtype=torch.bfloat16)
    assert _float32.incoming(rows, 16).stride() == (16, 1)


def test_float32_tokens_go_to_each_rank_by_themselves() -> None:
    sizes = _sizes.Sizes(4, 16, 8, 16, 3, torch.float32)
    exchange = _flat.FlatExchange(sizes, None, _lost.Watch(4))  # type: ignore[arg-type]
    ids = torch.tensor([[0, 15, 1], [7, 4, -1]])
    weights, x = torch.rand((2, 3)), torch.randn((2, 16))
    _, expanded, again, extra = exchange._per_rank(x, ids, weights, (torch.arange(2),))
    for token in range(2):
        for rank in range(4):
            expected = [e if e // 4 == rank else -1 for e in ids[token].tolist()]
            assert expanded[token * 4 + rank].tolist() == expected
    assert torch.equal(again, weights.repeat_interleave(4, dim=0))
    assert extra[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 6), st.integers(1, 5), st.sampled_from([0, 4, 8]), st.integers(0, 2**31))
def test_local_selections_against_a_loop(
    num_tokens: int, num_topk: int, first: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    expert_map = torch.full((12,), -1, dtype=torch.int32)
    expert_map[first : first + 4] = torch.arange(4, dtype=torch.int32)
    ids = torch.randint(-1, 12, (num_tokens, num_topk), generator=generator, dtype=torch.int32)
    weights = torch.rand((num_tokens, num_topk), generator=generator)
    found_ids, found_weights = repairs.local_selections(ids, weights, expert_map)
    expected = [
        [
            (e - first, w)
            for e, w in zip(ids[t].tolist(), weights[t].tolist(), strict=True)
            if first <= e < first + 4
        ]
        for t in range(num_tokens)
    ]
    most = max([1, *map(len, expected)])
    assert found_ids.shape == found_weights.shape == (num_tokens, most)
    assert found_ids.dtype == torch.int32
    for t, row in enumerate(expected):
        padded = row + [(0, 0.0)] * (most - len(row))
        pairs = zip(found_ids[t].tolist(), found_weights[t].tolist(), strict=True)
        assert list(pairs) == padded


@pytest.mark.parametrize("on_input", [False, True])
def test_experts_compute_only_their_own(on_input: bool) -> None:
    """Against a loop over tokens and selections; the kernel's stand-in knows local ids only."""
    experts = torch.tensor([2.0, 3.0, 5.0, 7.0])  # local ones: each multiplies

    def kernel(
        _self: Any, output: Any, x: Any, _w1: Any, _w2: Any, weights: Any, ids: Any, *rest: Any,
        apply_router_weight_on_input: bool = False,
    ) -> None:  # fmt: skip
        assert rest[2] is None
        factor = experts[ids.long()] * (1 if apply_router_weight_on_input else weights)
        output[:] = x * factor.sum(dim=1, keepdim=True)

    expert_map = torch.tensor([-1, -1, -1, -1, 0, 1, 2, 3], dtype=torch.int32)
    topk = 1 if on_input else 3
    ids = torch.tensor([[4, 0, 6], [1, 2, 3], [7, -1, 5]], dtype=torch.int32)[:, :topk]
    weights, x, output = torch.rand((3, topk)), torch.randn((3, 4)), torch.empty((3, 4))
    repaired = repairs.with_expert_map(kernel)
    repaired(
        None, output, x, None, None, weights, ids, "silu", 8, expert_map,
        apply_router_weight_on_input=on_input,
    )  # fmt: skip
    for t in range(3):
        total = torch.zeros(4)
        for k in range(topk):
            if ids[t, k] >= 4:
                total += (1 if on_input else weights[t, k]) * experts[ids[t, k] - 4] * x[t]
        torch.testing.assert_close(output[t], total)


@pytest.mark.multirank
def test_collectives_that_vllm_lacks() -> None:
    assert run(3, "vllm_parts_jobs.collectives") == [[]] * 3


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (_sizes.Sizes(2, 16, 8, 64, 4, torch.float16), "--dtype: torch.float16"),
        (_sizes.Sizes(3, 16, 8, 64, 4, torch.bfloat16), "16 over 3"),
    ],
)
def test_sizes_that_cannot_work(sizes: _sizes.Sizes, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        _sizes.checked(sizes)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"expert_placement_strategy": "round_robin", "enable_eplb": False}, "round_robin"),
        ({"expert_placement_strategy": "linear", "enable_eplb": True}, "--enable-eplb"),
    ],
)
def test_placements_that_cannot_work(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        _sizes.refuse_placement(SimpleNamespace(**config))


def test_faults_and_graphs_that_cannot_work() -> None:
    _sizes.refuse_fault_tolerance(SimpleNamespace(enable_fault_tolerance=False))
    with pytest.raises(InvalidArgument, match="--enable-fault-tolerance"):
        _sizes.refuse_fault_tolerance(SimpleNamespace(enable_fault_tolerance=True))
    _sizes.refuse_graphs(SimpleNamespace(cudagraph_mode=0))
    with pytest.raises(InvalidArgument, match="cudagraph_mode: PIECEWISE; NONE"):
        _sizes.refuse_graphs(SimpleNamespace(cudagraph_mode="PIECEWISE"))


def test_a_lost_rank_fails_the_step() -> None:
    watch = _lost.Watch(4)
    watch.refuse()
    watch.active_ranks[2] = 0
    with pytest.raises(Exception, match=r"ranks \[2\] were lost"):
        watch.refuse()


@pytest.mark.parametrize(("text", "limit"), [(None, -1), ("", -1), ("-1", -1), ("250000", 250_000)])
def test_the_deadline_of_waits(
    monkeypatch: pytest.MonkeyPatch, text: str | None, limit: int
) -> None:
    if text is None:
        monkeypatch.delenv(_lost.TIMEOUT, raising=False)
    else:
        monkeypatch.setenv(_lost.TIMEOUT, text)
    assert _lost.Watch(2).timeout_us == limit


@pytest.mark.parametrize("text", ["0", "-2", "1.5", "10s", "9" * 30])
def test_deadlines_that_cannot_be(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(_lost.TIMEOUT, text)
    with pytest.raises(InvalidArgument, match=f"{_lost.TIMEOUT}='{text}'"):
        _lost.Watch(2)


@pytest.mark.multirank
def test_a_late_rank_fails_the_step() -> None:
    """Both types of rows; the last rank does not come."""
    for words in run(2, "vllm_parts_jobs.late")[:1]:
        assert all("ranks [1] were lost" in said for said in words), words


class _Place:
    """Counts what is made."""

    num_ranks = 1

    def __init__(self) -> None:
        self.made: list[Any] = []

    def meet(self, _key: Any, _num_bytes: int) -> Any:
        time.sleep(0.01)  # so that other threads come meanwhile
        self.made.append(SimpleNamespace(closed=0))
        one = self.made[-1]
        one.close = lambda: setattr(one, "closed", one.closed + 1)
        return one


def test_threads_share_one_buffer_and_places_are_closed_apart() -> None:
    places = [_Place(), _Place()]
    keys = [_buffers.Key(place, 64, 4, torch.bfloat16, 8) for place in places]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(_buffers.buffer_for, keys * 8))
    assert [len(place.made) for place in places] == [1, 1]
    assert {id(one) for one in found} == {id(place.made[0]) for place in places}
    _buffers.close_buffers(places[0])
    assert [place.made[0].closed for place in places] == [1, 0]
    assert _buffers.open_buffers() == places[1].made
    _buffers.close_buffers()
    assert [place.made[0].closed for place in places] == [1, 1]


def test_replacements_are_all_or_none_and_once() -> None:
    stock = SimpleNamespace(__name__="stock", first=len, second=len)
    todo = [Replacement(stock, name, repairs.all_gatherv) for name in ("first", "third")]
    with pytest.raises(AttributeError, match="stock has no third"):
        todo[1].refuse_unknown()
    todo[0].make()
    assert stock.first is repairs.all_gatherv
    Replacement(stock, "first", repairs.reduce_scatterv).make()
    assert stock.first is repairs.all_gatherv


def platform(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """vLLM's, and nothing else of vLLM."""
    stand_in = SimpleNamespace(
        is_cpu=lambda: name == "cpu",
        is_cuda=lambda: name == "cuda",
        device_name=name,
        device_type=name,
    )
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__path__=[]))
    platforms = SimpleNamespace(current_platform=stand_in)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)


@pytest.mark.parametrize("name", ["cuda", "rocm", "tpu"])
def test_other_platforms_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    platform(monkeypatch, name)
    with pytest.raises(UnsupportedError, match=f"vLLM runs on {name}.* on cpu only"):
        _patches.install(frozenset({"manager"}))


def test_one_place_says_which_devices_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    platform(monkeypatch, "cuda")
    monkeypatch.setattr(_devices, "KINDS", ("cpu", "cuda"))
    assert _platform.kind() == "cuda"
    platform(monkeypatch, "rocm")
    with pytest.raises(UnsupportedError, match=r"rocm.* on cpu and cuda only"):
        _platform.kind()


def test_a_device_that_was_never_run_is_taken_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    platform(monkeypatch, "cuda")
    for value in ("", "0", "true"):
        monkeypatch.setenv(_devices.SWITCH, value)
        with pytest.raises(UnsupportedError, match="fix: export MOEWIRE_UNTESTED_DEVICES=1 "):
            _platform.kind()
    monkeypatch.setenv(_devices.SWITCH, "1")
    assert _platform.kind() == "cuda"
    platform(monkeypatch, "rocm")
    with pytest.raises(UnsupportedError, match=r"on cpu only$"):
        _platform.kind()


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_buffers_lie_where_vllms_tensors_do(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    platform(monkeypatch, name)
    made: list[Any] = []
    monkeypatch.setattr(_buffers, "Buffer", lambda *given, **named: made.append((given, named)))
    group: Any = object()
    place = _place.of(group)
    assert place == _place.of(group)  # by which a manager closes them
    place.meet(_buffers.Key(place, 64, 4, torch.bfloat16, 8), 123)
    assert made == [((group, 123), {"device": name})]


def test_repairs_are_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    platform(monkeypatch, "cuda")
    monkeypatch.setattr(_devices, "KINDS", ("cpu", "cuda"))
    with pytest.raises(UnsupportedError, match="they are for the CPU"):
        _patches.install(frozenset({"repairs"}))


@pytest.mark.parametrize("version", ["0.31.0", "0.33.0"])
def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(_plugin.metadata, "version", lambda _name: version)
    refused = _plugin.decide(_engines.VLLM, {"MOEWIRE_VLLM": "1"})
    assert not refused.used and "0.32.0" in refused.refusal and version in refused.refusal
    assert not _plugin.decide(_engines.VLLM, {}).wanted
