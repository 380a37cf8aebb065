"""What the ranks do with SGLang's dispatchers. Each job answers with plain values."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import logging
import random
import runpy
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
NUM_STAGES = len(client.STAGES)
NUM_DRAWN = 40
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


def layers(backend: str, dtype: str, hook: bool, num_layers: int = NUM_LAYERS) -> dict[str, Any]:
    """Layer after layer, each with a dispatcher of its own; rows and results to the bit."""
    group, experts = _begin()
    fp8 = dtype == "fp8"
    wrong: list[str] = []
    lengths = []
    for number in range(num_layers):
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
    """Checks the shapes and strides that SGLang's kernels rely on."""
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
    """Two halves of a batch over one buffer: orders of their stages, each over some layers."""
    group, experts = _begin()
    halves = [client.make_dispatcher(backend, group, experts) for _ in range(2)]
    chosen = [*_orders_of_one_layer(), *_leads(), *_drawn_orders()]
    wrong = []
    for seed, (length, of_first) in enumerate(chosen):
        wrong += _play(halves, seed, length, of_first, experts)
    return {
        "wrong": wrong,
        "orders": len(chosen),
        "passes": sum(2 * length // NUM_STAGES for length, _ in chosen),
        "operations": client.num_operations(backend),
    }


# A number of stages, and which steps belong to the first half; the others are the second's.
Order = tuple[int, frozenset[int]]


def _orders_of_one_layer() -> Iterator[Order]:
    """All there are."""
    for steps in itertools.combinations(range(2 * NUM_STAGES), NUM_STAGES):
        yield NUM_STAGES, frozenset(steps)


def _leads() -> Iterator[Order]:
    """What SGLang does over a model: the first half leads by some stages, then they take turns."""
    length = 3 * NUM_STAGES
    for lead in range(length + 1):
        turns = range(lead, lead + 2 * (length - lead), 2)
        yield length, frozenset([*range(lead), *turns])


def _drawn_orders() -> Iterator[Order]:
    """Two layers in any order in which no dispatch comes between another two and a combine."""
    length = 2 * NUM_STAGES
    drawn = random.Random(7)
    left = NUM_DRAWN
    while left:
        order = length, frozenset(drawn.sample(range(2 * length), length))
        if _fits_two_slots(order):
            left -= 1
            yield order


def _fits_two_slots(order: Order) -> bool:
    length, of_first = order
    done, open_since = [0, 0], [0, 0]
    num_dispatches = 0
    for step in range(2 * length):
        half = 0 if step in of_first else 1
        stage = client.STAGES[done[half] % NUM_STAGES]
        if stage == "dispatch_a":
            num_dispatches += 1
            open_since[half] = num_dispatches
            other = 1 - half
            if open_since[other] and num_dispatches - open_since[other] >= 2:
                return False
        if stage == "combine_b":
            open_since[half] = 0
        done[half] += 1
    return True


def _play(
    halves: list[Any], seed: int, length: int, of_first: frozenset[int], experts: int
) -> list[str]:
    wrong = []
    done = [0, 0]
    current: list[Any] = [None, None]
    for step in range(2 * length):
        half = 0 if step in of_first else 1
        number = 6 * seed + 2 * (done[half] // NUM_STAGES) + half
        own = reference.batch(number, dist.get_rank(), experts)
        if done[half] % NUM_STAGES == 0:
            current[half] = Pass(halves[half], own)
        current[half].step()
        done[half] += 1
        if done[half] % NUM_STAGES == 0 and not torch.equal(
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
    """What SGLang reports when there is neither its library nor the plug-in."""
    group, experts = _begin()
    try:
        client.make_dispatcher(backend, group, experts)
    except ImportError as error:
        return str(error)
    return "nothing"


def prompts_and_tokens(mode: str, dtype: str, num_layers: int) -> dict[str, Any]:
    """The normal mode for prompts. ``mode`` "auto": then the low-latency mode, on one buffer."""
    from sglang.srt.layers import deep_gemm_wrapper
    from sglang.srt.runtime_context import get_forward

    deep_gemm_wrapper.ENABLE_JIT_DEEPGEMM = True  # without it SGLang does not combine prompts
    group, experts = _begin()
    sglang_light.dispatcher("deepep").sglang_per_token_group_quant_fp8 = client.quantised
    wrong, counts, fp8 = [], [], dtype == "fp8"
    for number in range(num_layers):
        batches = _batches(number, experts)
        own = batches[dist.get_rank()]
        one = client.make_dispatcher("deepep", group, experts, dtype=dtype, mode=mode)
        get_forward().set("is_extend_in_batch", True)
        got = one.dispatch(hidden_states=own.x.clone(), topk_output=own.routing())
        counts.append(got.num_recv_tokens_per_expert)
        if client.prompt_rows(got) != reference.prompt_rows(
            dist.get_rank(), batches, LOCAL_EXPERTS, fp8
        ):
            wrong.append(f"layer {number}: rows of prompts")
        outputs = client.run_prompt_experts(got, one)
        out = one.combine((outputs, got.topk_ids, got.topk_weights))
        if not torch.equal(out, reference.prompt_layer(own, LOCAL_EXPERTS, group.size(), fp8=fp8)):
            wrong.append(f"layer {number}: result of prompts")
        if mode == "normal":
            continue
        get_forward().set("is_extend_in_batch", False)
        if not torch.equal(Pass(one, own).run(), reference.layer(own, fp8)):
            wrong.append(f"layer {number}: result of tokens")
    return {"wrong": wrong, "counts": counts}


def modules(*folders: str) -> dict[str, Any]:
    """The origin of modules after the plug-in has run, with more to import from folders."""
    sys.path[:0] = folders
    client.load_plugins()
    import mooncake.mooncake_ep_buffer as leaf

    answer: dict[str, Any] = {"buffer": _origin(leaf.Buffer)}
    answer["deep_ep"] = _origin(importlib.import_module("deep_ep").Buffer)
    answer["dispatcher"] = _origin(sglang_light.dispatcher("deepep").Buffer)
    try:
        from mooncake.engine import TransferEngine

        answer["engine"] = _origin(TransferEngine)
    except ImportError as error:
        answer["engine"] = type(error).__name__
    return answer


def modules_with_early_deep_ep(folder: str) -> dict[str, Any]:
    """As ``modules``; the dispatcher has found what is installed."""
    sys.path.insert(0, folder)
    del sys.modules[sglang_light.dispatcher("deepep").__name__]
    sglang_light.dispatcher("deepep")
    return modules()


def _origin(thing: Any) -> str:
    return thing if isinstance(thing, str) else str(thing.__module__)


def untested_version(folder: str, backend: str) -> str:
    """As ``refused``, where SGLang says that it is of the version found in a folder."""
    sys.path.insert(0, folder)
    return refused(backend)


def example(path: str) -> str:
    """What a program prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()


def log_lines(level: str) -> list[str]:
    """What our logger says when SGLang loads the plug-in."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = (  # type: ignore[method-assign]
        lambda record: lines.append(f"{record.levelname} {record.getMessage()}")
    )
    logger = logging.getLogger("moewire")
    logger.addHandler(handler)
    logger.setLevel(level)
    client.load_plugins()
    return lines


def broken() -> dict[str, Any]:
    """An SGLang with a changed name: nothing of it is touched."""
    del sglang_light.dispatcher("deepep").use_deepep
    lines = log_lines("INFO")
    touched = [name for name in ("mooncake", "deep_ep") if name in sys.modules]
    return {"lines": lines, "touched": touched}
