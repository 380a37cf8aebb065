"""The parts of vLLM's tier over a client that answers when a test says so. Without vLLM."""

from __future__ import annotations

from moewire.integrations.vllm.offload._counts import Counts
from moewire.integrations.vllm.offload._lookups import Lookups
from moewire.integrations.vllm.offload._requests import Requests
from moewire.integrations.vllm.offload._transfers import Transfers

from .fake_store import Hand

ROW = 64
TIMEOUT = 0.25


class World:
    """The tier's parts over a client that answers when it is told to."""

    def __init__(self, num_rows: int = 64, backlog: int = 1 << 20, row: int = ROW) -> None:
        self.now = 100.0
        self.client = Hand()
        self.counts = Counts()
        self.memory = bytearray(num_rows * row)
        rows = memoryview(self.memory)
        self.requests = Requests(self.client, TIMEOUT, self.clock, self.counts)
        self.lookups = Lookups(self.requests, TIMEOUT, self.clock, self.counts)
        self.transfers = Transfers(
            self.requests,
            lambda chunk: rows[chunk * row : (chunk + 1) * row],
            row,
            backlog,
            self.clock,
            self.counts,
        )

    def clock(self) -> float:
        return self.now

    def settle(self, error: str | None = None) -> None:
        """Everything is answered."""
        self.requests.poll()
        while self.client.asked:
            self.client.answer(error)
            self.requests.poll()

    def fill(self, chunk: int, value: int) -> bytes:
        self.memory[chunk * ROW : (chunk + 1) * ROW] = bytes([value]) * ROW
        return bytes([value]) * ROW

    def row(self, chunk: int) -> bytes:
        return bytes(self.memory[chunk * ROW : (chunk + 1) * ROW])
