"""One process of the demo. Rank 0 also runs the model alone, compares, and reports."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed import DistributedConfig

# Loaded here, once, before the processes fork; transformers would do it in each.
from transformers.models.mixtral import modeling_mixtral  # noqa: F401

import moewire.integrations.transformers as moe

from . import compare, generate, picture, report
from .traffic import RankTraffic, Traffic

WAIT_US = 120_000_000  # for another rank; far more than a step takes


class Outcome(NamedTuple):
    """What one rank tells rank 0."""

    texts: list[generate.Text]
    course: generate.Course
    traffic: RankTraffic
    exchange_ms: float  # per layer and step


def run_with_store(options: argparse.Namespace, rank: int, store: str) -> int:
    """A process that ``launch`` started."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options.ranks), OMP_NUM_THREADS="1"
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    init = partial(
        dist.init_process_group,
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=options.ranks,
    )
    return _run(options, init)


def run_from_environment(options: argparse.Namespace) -> int:
    """A process that torchrun, or another launcher with torch's variables, started."""
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    return _run(options, partial(dist.init_process_group, "gloo"))


def _run(options: argparse.Namespace, init: Any) -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)  # the processes share the cores
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    init()
    try:
        with torch.inference_mode():
            return _demo(options)
    except BrokenPipeError:
        raise  # the reader of the output is gone
    except Exception:
        print(f"rank {dist.get_rank()}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return 1
    finally:
        moe.close()
        dist.destroy_process_group()


def _demo(options: argparse.Namespace) -> int:
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    config = AutoConfig.from_pretrained(options.model)
    screen = report.Screen(silent=rank != 0)
    screen.header(config, num_ranks, len(options.prompt))
    begin = perf_counter()
    moe.configure(timeout_us=WAIT_US)
    distributed = DistributedConfig(
        fsdp_size=num_ranks, ep_size=num_ranks, ep_implementation=moe.NAME
    )
    model = _load(options, distributed)
    _warm_up(model)
    screen.note(f"loaded over {num_ranks} processes in {perf_counter() - begin:.1f} s")
    outcome = _generate(options, config, model, screen)
    gathered: list[Outcome] | None = [outcome] * num_ranks if rank == 0 else None
    dist.gather_object(outcome, gathered)
    status = _conclude(options, config, gathered, screen) if gathered is not None else 0
    dist.barrier()  # no process ends before the comparison
    return status


def _load(options: argparse.Namespace, distributed: DistributedConfig | None) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        options.model,
        dtype=torch.bfloat16,
        # Each row by itself: then its bits do not depend on the rows that share its expert, which
        # differ between several processes and one.
        experts_implementation="batched_mm",
        distributed_config=distributed,
    )
    return model.eval()


def _warm_up(model: torch.nn.Module) -> None:
    """Connects the ranks, and lets torch set itself up, before anything is timed or counted."""
    moe.gather_dense_weights(model)
    model(input_ids=torch.zeros((1, 1), dtype=torch.int64))
    moe.reset_stats(model)


def _batch(options: argparse.Namespace, config: Any, rank: int, num_ranks: int) -> generate.Batch:
    """The prompts of one rank: every R-th."""
    special = generate.Special(config.bos_token_id, config.eos_token_id, config.pad_token_id)
    numbered = list(enumerate(options.prompt))[rank::num_ranks]
    return generate.Batch([generate.Text(n, text, options) for n, text in numbered], special)


def _generate(
    options: argparse.Namespace, config: Any, model: torch.nn.Module, screen: report.Screen
) -> Outcome:
    batch = _batch(options, config, dist.get_rank(), dist.get_world_size())
    (buffer,) = moe.buffers(model)
    before = buffer.counters()
    course = generate.run_together(
        model, batch, partial(moe.join, model), _all_done, screen.progress("together")
    )
    layers = list(moe.stats(model).values())
    routed = batch.num_routed * len(layers) * config.num_experts_per_tok
    traffic = RankTraffic.between(before, buffer.counters(), layers, routed, batch.num_routed)
    seconds = sum(layer.seconds_exchange for layer in layers)
    exchange_ms = 1e3 * seconds / sum(layer.calls for layer in layers)
    return Outcome(batch.texts, course, traffic, exchange_ms)


def _all_done(done: bool) -> bool:
    everybody = torch.tensor([done], dtype=torch.int32)
    dist.all_reduce(everybody, dist.ReduceOp.MIN)
    return bool(everybody.item())


def _conclude(
    options: argparse.Namespace, config: Any, outcomes: list[Outcome], screen: report.Screen
) -> int:
    """Rank 0 runs the model alone, then compares and reports."""
    model = _load(options, None)
    model(input_ids=torch.zeros((1, 1), dtype=torch.int64))
    batches = [_batch(options, config, rank, len(outcomes)) for rank in range(len(outcomes))]
    alone = generate.run_alone(model, batches, screen.progress("alone"))
    together = sorted((text for one in outcomes for text in one.texts), key=lambda t: t.number)
    expected = sorted((text for one in batches for text in one.texts), key=lambda t: t.number)
    comparison = compare.compare(together, expected, compare.rows_are_independent(model))
    traffic = Traffic([one.traffic for one in outcomes])
    screen.texts(together, expected, len(outcomes))
    screen.times([one.course for one in outcomes], [one.exchange_ms for one in outcomes], alone)
    screen.rows(traffic, [one.course for one in outcomes], config)
    screen.matrix(traffic)
    screen.load(traffic)
    screen.files(picture.write(options.picture, traffic))
    return screen.comparison(comparison, traffic.differences(outcomes[0].course.num_steps))
