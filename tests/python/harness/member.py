"""One process of a team: runs jobs until it is told to stop."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import moewire

TIMEOUT_SECONDS = 300.0  # of ranks with one another


@dataclass
class Rank:
    """What a job knows of its place. ``folder`` is fresh for every run."""

    rank: int
    size: int
    folder: str
    seed: int

    def store(self, name: str = "store") -> dist.Store:
        return dist.FileStore(os.path.join(self.folder, name), self.size)

    def buffer(
        self,
        num_bytes: int = 0,
        *,
        name: str = "store",
        overwrites_held: bool = False,
        **options: Any,
    ) -> moewire.Buffer:
        """``overwrites_held``: by upstream's rule, as Mooncake's and DeepEP's names."""
        options.setdefault("connect_timeout_us", 60_000_000)
        kind = moewire.Buffer
        if overwrites_held:
            kind = type("Overwriting", (kind,), {"_overwrites_held": True})
        return kind.from_store(self.store(name), self.rank, self.size, num_bytes, **options)

    def group(self) -> dist.ProcessGroup:
        """The default gloo group; destroyed after the job."""
        dist.init_process_group(
            "gloo", store=self.store("group"), rank=self.rank, world_size=self.size
        )
        return dist.group.WORLD

    def random(self, *salt: int) -> np.random.Generator:
        """The same numbers on every rank."""
        return np.random.default_rng([self.seed, *salt])

    def meet(self, name: str) -> None:
        """Waits until every rank is here; needs no library."""
        self.meet_some(name, list(range(self.size)))

    def meet_some(self, name: str, ranks: list[int]) -> None:
        """The same for some ranks."""
        mine = os.path.join(self.folder, f"meet-{name}-{self.rank}")
        open(mine, "w").close()
        others = [os.path.join(self.folder, f"meet-{name}-{rank}") for rank in ranks]
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not all(os.path.exists(path) for path in others):
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {self.rank} waited for the others at {name!r}")
            time.sleep(0.001)


def main(pipe: Any, log_path: str) -> None:
    log = open(log_path, "a", buffering=1)  # noqa: SIM115, it lives as long as the process
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = log
    faulthandler.enable(file=log)
    faulthandler.register(signal.SIGUSR1, file=log, all_threads=True)
    # A shell that starts the tests in the background ignores SIGINT, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    while True:
        job = pipe.recv()
        if job is None:
            return
        pipe.send(_run(*job))


def _run(function: Any, rank: Rank, args: tuple[Any, ...]) -> tuple[bool, Any]:
    print(f"--- {function.__name__} rank {rank.rank} of {rank.size}, seed {rank.seed}")
    environment = dict(os.environ)
    try:
        return True, function(rank, *args)
    except BaseException:
        text = traceback.format_exc()
        print(text)
        return False, text
    finally:
        os.environ.clear()
        os.environ.update(environment)
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()
