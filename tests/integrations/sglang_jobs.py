"""What the ranks do with SGLang's dispatchers. Each job answers with plain values."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from typing import Any

import sglang_client as client
import sglang_light
import sglang_reference as reference
import torch
import torch.distributed as dist
from sglang_client import Pass

LOCAL_EXPERTS = 4
NUM_LAYERS = 12
NUM_LONG_SCHEDULES = 60
SPARE_RANKS = 2  # room for ranks that may come: the mask is longer than the group


def _begin(active_ranks: list[int] | None = None) -> tuple[Any, int]:
    """The group and its number of experts, with the plug-in loaded as SGLang loads it."""
    client.load_plugins()
    group, size = dist.group.WORLD, dist.get_world_size()
    mask = [1] * size + [0] * SPARE_RANKS if active_ranks is None else active_ranks
    client.set_active_ranks(torch.tensor(mask, dtype=torch.int32))
    return group, LOCAL_EXPERTS * size


def _batches(seed: int, experts: int) -> list[reference.Batch]:
    return [reference.batch(seed, rank, experts) for rank in range(dist.get_world_size())]


def layers(backend: str, dtype: str, hook: bool) -> dict[str, Any]:
    """Layer after layer, each with a dispatcher of its own; rows and results to the bit."""
    group, experts = _begin()
    fp8 = dtype == "fp8"
    wrong: list[str] = []
    lengths = []
    for number in range(NUM_LAYERS):
        batches = _batches(number, experts)
        own = batches[dist.get_rank()]
        one = client.make_dispatcher(backend, group, experts, hook=hook, dtype=dtype)
        layer = Pass(one, own)
        layer.step()
        layer.step()
        for local in range(LOCAL_EXPERTS):
            expert = client.first_expert(one) + local
            if client.rows_received(layer.received, local) != reference.rows_of(
                expert, batches, fp8
            ):
                wrong.append(f"layer {number}: rows of expert {expert}")
        wrong += [f"layer {number}: {what}" for what in _misshapen(layer.received, own, fp8)]
        if not torch.equal(layer.run(), reference.layer(own, fp8)):
            wrong.append(f"layer {number}: result")
        lengths.append(len(own.x))
    return {"wrong": wrong, "lengths": lengths, "operations": client.num_operations(backend)}


def _misshapen(got: Any, own: reference.Batch, fp8: bool) -> Iterator[str]:
    """What SGLang's kernels rely on."""
    size = dist.get_world_size()
    rows = size * reference.MAX_TOKENS
    if tuple(got.hidden_states.shape) != (LOCAL_EXPERTS, rows, reference.HIDDEN):
        yield "shape of hidden_states"
    if got.masked_m.dtype != torch.int32 or got.topk_ids.dtype != torch.int64:
        yield "dtype of masked_m or topk_ids"
    experts = LOCAL_EXPERTS * size
    if got.expected_m != (len(own.x) * size * reference.TOPK + experts) // experts:
        yield "expected_m"
    if fp8 and (
        got.hidden_states.dtype != torch.float8_e4m3fn
        or got.hidden_states_scale.stride(1) != 1  # column-major, for DeepGEMM
    ):
        yield "dtype or strides of the fp8 rows"


def schedules(backend: str) -> dict[str, Any]:
    """Two halves of a batch over one buffer, in every order of their stages.

    First all orders of one layer, then some of two layers, in which one half may be a layer
    ahead of the other.
    """
    group, experts = _begin()
    halves = [client.make_dispatcher(backend, group, experts) for _ in range(2)]
    one_layer = list(_merges(len(client.STAGES)))
    drawn = random.Random(7)
    long = 2 * len(client.STAGES)
    two_layers = [
        tuple(sorted(drawn.sample(range(2 * long), long))) for _ in range(NUM_LONG_SCHEDULES)
    ]
    wrong = []
    for seed, (length, of_first) in enumerate(
        [(len(client.STAGES), one) for one in one_layer] + [(long, two) for two in two_layers]
    ):
        wrong += _play(halves, seed, length, frozenset(of_first), experts)
    return {
        "wrong": wrong,
        "orders": len(one_layer),
        "passes": 2 * len(one_layer) + 4 * len(two_layers),
        "operations": client.num_operations(backend),
    }


def _merges(length: int) -> Iterator[tuple[int, ...]]:
    """Which steps belong to the first of two sequences of this length."""
    return itertools.combinations(range(2 * length), length)


def _play(
    halves: list[Any], seed: int, length: int, of_first: frozenset[int], experts: int
) -> list[str]:
    stages = len(client.STAGES)
    wrong = []
    done, current = [0, 0], [None, None]  # type: ignore[var-annotated]
    for step in range(2 * length):
        half = 0 if step in of_first else 1
        number = 4 * seed + 2 * (done[half] // stages) + half
        own = reference.batch(number, dist.get_rank(), experts)
        if done[half] % stages == 0:
            current[half] = Pass(halves[half], own)
        current[half].step()
        done[half] += 1
        if done[half] % stages == 0 and not torch.equal(
            current[half].out, reference.layer(own, fp8=True)
        ):
            wrong.append(f"order {sorted(of_first)}, half {half}")
    return wrong


def one_layer(backend: str) -> dict[str, Any]:
    """Whether a single layer's result is right."""
    group, experts = _begin()
    own = reference.batch(1, dist.get_rank(), experts)
    assert len(own.x) or dist.get_rank() == 2
    out = Pass(client.make_dispatcher(backend, group, experts), own).run()
    return {
        "right": torch.equal(out, reference.layer(own, fp8=True)),
        "operations": client.num_operations(backend),
    }


def plugin_before_dispatcher(backend: str) -> dict[str, Any]:
    """As ``one_layer``, in a process that imports the dispatcher after its plug-ins."""
    del sys.modules[sglang_light.dispatcher(backend).__name__]
    return one_layer(backend)


def refused(backend: str) -> str:
    """What SGLang says when there is neither its library nor the plug-in."""
    group, experts = _begin()
    try:
        client.make_dispatcher(backend, group, experts)
    except ImportError as error:
        return str(error)
    return "nothing"


def modules() -> dict[str, Any]:
    """What of Mooncake can be imported once the plug-in has run."""
    client.load_plugins()
    import mooncake.mooncake_ep_buffer as leaf

    answer: dict[str, Any] = {"buffer": leaf.Buffer.__module__}
    try:
        from mooncake.engine import TransferEngine

        answer["engine"] = TransferEngine
    except ImportError as error:
        answer["engine"] = type(error).__name__
    return answer


def modules_with(folder: str) -> dict[str, Any]:
    """As ``modules``, with more to import from a folder."""
    sys.path.insert(0, folder)
    return modules()
