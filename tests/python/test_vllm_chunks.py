"""Chunks that vLLM's memory does not have: nothing is read or written elsewhere in their place."""

from __future__ import annotations

import pytest

from harness.offload_world import ROW, World

ROWS = 4


@pytest.mark.parametrize("chunk", [ROWS, ROWS + 7, -1, -ROWS])
def test_a_chunk_that_does_not_exist_fails_alone(chunk: int) -> None:
    world = World(num_rows=ROWS)
    blocks = [b"before", b"wrong", b"after"]
    values = [world.fill(0, 1), world.fill(1, 2)]
    world.transfers.store(1, blocks, [0, chunk, 1])
    world.settle()
    assert world.client.blocks == {b"before": values[0], b"after": values[1]}
    assert world.transfers.ended()[0].ok == [b"before", b"after"]
    assert (world.counts.store_failures, world.transfers.backlog) == (1, 0)
    world.client.blocks[b"wrong"] = b"w" * ROW
    before = bytes(world.memory)
    world.transfers.load(2, [b"wrong"], [chunk])
    world.settle()
    (ended,) = world.transfers.ended()
    assert (ended.ok, ended.gone, bytes(world.memory)) == ([], [], before)
    assert world.counts.load_failures == 1
