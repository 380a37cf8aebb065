"""SGLang's elastic state and its recovery of ranks, with a rank that is killed and comes back.

SGLang's own functions are called in its order. Their process group is Mooncake's, which needs a
GPU: a group without collectives stands in for it, and a module with the three functions of
``mooncake.pg`` by which survivors learn that a fresh process is there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import sglang_client as client
import sglang_reference as reference
import torch
import torch.distributed as dist
from sglang_client import Pass

LOCAL_EXPERTS, SPARE_RANKS, NUM_LAYERS = 4, 2, 2
_COME_BACK_SECONDS = 60


def killed_and_back(rank: int, size: int, folder: Path, deaths: int) -> dict[str, Any]:
    """The last rank is killed ``deaths`` times, each time by itself, and replaced."""
    if rank < size - 1:
        return _survivor(rank, size, folder, deaths)
    for life in range(deaths):
        _live_and_die(size, folder, life)
    return _one_life(size, folder, deaths)


def _live_and_die(size: int, folder: Path, life: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            _one_life(size, folder, life)
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"life {life} failed"


def _survivor(rank: int, size: int, folder: Path, deaths: int) -> dict[str, Any]:
    world = _World(rank, size, folder, [1] * size)
    seen = [world.layers(0)]
    for life in range(1, deaths + 1):
        seen.append(world.layers(10 * life, lost=[size - 1]))
        seen[-1]["noticed"] = not world.state().is_active_equal_last()
        world.state().snapshot_active_to_last()
        world.wait_for(size - 1, life)
        world.state().reset()
        seen.append(world.layers(10 * life + 5))
    return {"seen": seen, "operations": client.num_operations("mooncake")}


def _one_life(size: int, folder: Path, life: int) -> dict[str, Any]:
    rank, others = size - 1, list(range(size - 1))
    if life == 0:
        world = _World(rank, size, folder, [1] * size)
        return {"seen": [world.layers(0)]}
    world = _World(rank, size, folder, [0] * (size - 1) + [1])
    world.announce(rank, life)
    alone = world.layers(10 * life + 8, lost=others)
    world.join()
    world.state().reset()
    together = world.layers(10 * life + 5)
    return {"seen": [alone, together], "operations": client.num_operations("mooncake")}


class _World:
    """One process among the ranks."""

    def __init__(self, rank: int, size: int, folder: Path, active: list[int]) -> None:
        import torch.testing._internal.distributed.fake_pg

        self._rank, self._size = rank, size
        self._store = dist.FileStore(str(folder / "elastic"))
        dist.init_process_group("fake", store=self._store, rank=rank, world_size=size)
        client.load_plugins()
        mask = torch.tensor(active + [0] * SPARE_RANKS, dtype=torch.int32)
        client.set_active_ranks(mask)
        self._address = mask.data_ptr()
        self.state().effective_ep_size = size
        self._experts = LOCAL_EXPERTS * size
        self._dispatchers = [
            client.make_dispatcher("mooncake", dist.group.WORLD, self._experts)
            for _ in range(NUM_LAYERS)
        ]

    def state(self) -> Any:
        """SGLang's."""
        from sglang.srt.elastic_ep.elastic_ep import ElasticEPStateManager

        return ElasticEPStateManager.instance()

    def layers(self, seed: int, lost: list[int] | None = None) -> dict[str, Any]:
        """One forward; whether its results are right without the experts of ``lost``."""
        lost_experts = frozenset(
            rank * LOCAL_EXPERTS + local for rank in lost or [] for local in range(LOCAL_EXPERTS)
        )
        right = []
        for number, dispatcher in enumerate(self._dispatchers):
            own = reference.batch(seed + number, self._rank, self._experts)
            out = Pass(dispatcher, own).run()
            right.append(torch.equal(out, reference.layer(own, True, lost_experts)))
        mask = self.state().active_ranks
        assert mask.data_ptr() == self._address  # CUDA graphs have it
        return {"right": right, "active": mask.tolist()}

    # -- what stands in for Mooncake's process group ------------------------

    def announce(self, rank: int, life: int) -> None:
        """A fresh process is there, as Mooncake's group would know."""
        self._store.set(f"life/{rank}/{life}", "yes")

    def _install_group(self, life: int) -> None:
        module = ModuleType("mooncake.pg")
        module.get_peer_state = lambda _, ranks: [  # type: ignore[attr-defined]
            self._store.check([f"life/{rank}/{life}"]) for rank in ranks
        ]
        module.recover_ranks = module.join_group = (  # type: ignore[attr-defined]
            lambda *_: None
        )
        sys.modules["mooncake.pg"] = module

    def wait_for(self, rank: int, life: int) -> None:
        """SGLang polls so between forwards."""
        from sglang.srt.elastic_ep.elastic_ep import try_recover_ranks

        self._install_group(life)
        deadline = time.monotonic() + _COME_BACK_SECONDS
        while not try_recover_ranks([rank]):
            assert time.monotonic() < deadline, "nobody has come"
            time.sleep(0.01)

    def join(self) -> None:
        """What a joiner does after it has warmed up on its own."""
        from sglang.srt.elastic_ep.elastic_ep import join_process_groups

        self._install_group(0)
        join_process_groups()
