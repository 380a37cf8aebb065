"""What the tier counts, as vLLM's metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass

PREFIX = "vllm:kv_offload_moewire_"

WORDS = {
    "lookup_blocks": "Blocks that the store was asked for.",
    "lookup_hits": "Blocks that the store said it has.",
    "lookup_failures": "Blocks that count as missing because the store did not answer in time.",
    "load_blocks": "Blocks loaded from the store.",
    "load_misses": "Blocks that the store had said it has, and did not give: computed again.",
    "load_failures": "Blocks that could not be loaded, for want of an answer: computed again.",
    "store_blocks": "Blocks stored.",
    "store_present": "Blocks not sent to the store, because it has them.",
    "store_failures": "Blocks that the store did not take: full, a conflict, no answer.",
    "store_shed_blocks": "Blocks not sent to the store, because too many bytes were on their way.",
    "would_block": "Times that the client took no further request for the moment.",
}
BACKLOG = "store_backlog_bytes"
BACKLOG_WORDS = "Bytes of blocks that are on their way to the store."


@dataclass
class Counts:
    """Each since the tier began."""

    lookup_blocks: int = 0
    lookup_hits: int = 0
    lookup_failures: int = 0
    load_blocks: int = 0
    load_misses: int = 0
    load_failures: int = 0
    store_blocks: int = 0
    store_present: int = 0
    store_failures: int = 0
    store_shed_blocks: int = 0
    would_block: int = 0

    def since(self, before: dict[str, int]) -> dict[str, int]:
        """What was added to each, of those to which something was."""
        return {k: v - before.get(k, 0) for k, v in asdict(self).items() if v != before.get(k, 0)}
