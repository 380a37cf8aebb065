"""Ranks for tests with engines: what they import is imported once, then they are forked."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

# By name, so that the server needs no path of ours. It never loads the Go library.
PRELOAD = [
    "torch.distributed.fsdp",
    "accelerate",
    "transformers.generation.utils",
    "transformers.distributed.expert_parallel",
    *(
        f"transformers.models.{name}.modeling_{name}"
        for name in ("mixtral", "deepseek_v3", "qwen3_moe", "olmoe", "gpt_oss")
    ),
]
_TAIL_BYTES = 6000


def run(
    size: int,
    job: str,
    *arguments: Any,
    timeout: float = 150.0,
    start: str = "forkserver",
    group: bool = True,
    dies: frozenset[int] = frozenset(),
    **environment: str,
) -> list[Any]:
    """``job(*arguments)`` on every rank of a gloo group; the results by rank.

    ``job`` is "module.function", imported by the ranks only. Without ``group`` there is none,
    and the job is called with its rank, the number of ranks, and a folder of the launch before
    its arguments. ``start`` is multiprocessing's: "forkserver" preloads transformers, "fork"
    has what this process has. ``environment`` has variables of the ranks. Ranks in ``dies`` are
    expected to end without a result.
    """
    context: Any = multiprocessing.get_context(start)
    if start == "forkserver":
        context.set_forkserver_preload(PRELOAD)
    with tempfile.TemporaryDirectory(prefix="moewire-integrations-") as name:
        folder = Path(name)
        pipes, ranks = [], []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            given = (rank, size, folder, theirs, job, arguments, group, environment)
            ranks.append(context.Process(target=_main, args=given, daemon=True))
            ranks[-1].start()
            theirs.close()
            pipes.append(ours)
        try:
            results = _collect(pipes, time.monotonic() + timeout, dies)
        finally:
            for process in ranks:
                process.join(0 if sys.exc_info()[0] else 5)
                process.kill()
        if _failed(results, dies):
            raise AssertionError(_logs(folder, results, timeout))
        return [result and result[1] for result in results]


def _failed(results: list[Any], dies: frozenset[int]) -> bool:
    return any(
        result is not None if rank in dies else result is None or not result[0]
        for rank, result in enumerate(results)
    )


def _collect(pipes: list[Any], deadline: float, dies: frozenset[int]) -> list[Any]:
    results: list[Any] = [None] * len(pipes)
    waiting = set(range(len(pipes)))
    while waiting and time.monotonic() < deadline:
        for rank in sorted(waiting):
            if pipes[rank].poll(0.01):
                waiting.discard(rank)
                with contextlib.suppress(EOFError, OSError):
                    results[rank] = pipes[rank].recv()
                if rank not in dies and (results[rank] is None or not results[rank][0]):
                    deadline = min(deadline, time.monotonic() + 3)  # the others wait for it
    return results


def _logs(folder: Path, results: list[Any], timeout: float) -> str:
    lines = [f"ranks failed, or did not answer in {timeout:.0f} s"]
    for rank, result in enumerate(results):
        state = "no answer" if result is None else "ok" if result[0] else "failed"
        log = (folder / f"rank-{rank}.log").read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        lines += [f"===== rank {rank}: {state}", log]
    return "\n".join(lines)


def _main(
    rank: int,
    size: int,
    folder: Path,
    pipe: Any,
    job: str,
    arguments: Any,
    group: bool,
    environment: dict[str, str],
) -> None:
    log = (folder / f"rank-{rank}.log").open("w")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = log
    faulthandler.enable(log)
    faulthandler.dump_traceback_later(100, file=log)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), HF_HUB_OFFLINE="1"
    )
    os.environ.update(environment)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        if group:
            result = (True, _in_group(rank, size, folder, job, arguments))
        else:
            result = (True, function_of(job)(rank, size, folder, *arguments))
    except BaseException:
        traceback.print_exc()
        log.flush()
        result = (False, None)
    pipe.send(result)


def _in_group(rank: int, size: int, folder: Path, job: str, arguments: Any) -> Any:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=size
    )
    try:
        return function_of(job)(*arguments)
    finally:
        dist.destroy_process_group()


def function_of(name: str) -> Any:
    """What "module.function" names, which is imported."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)
