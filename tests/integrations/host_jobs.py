"""Jobs of engines with ranks that take themselves for ranks of different hosts."""

from __future__ import annotations

import os
from typing import Any

from integration_ranks import function_of

# Nothing but variables of the environment; each rank adds its own host's name.
VARIABLES = {
    "MOEWIRE_KEY": bytes(range(32)).hex(),
    "MOEWIRE_LISTEN": "127.0.0.1",
    "MOEWIRE_UNRESPONSIVE_AFTER_US": "600000000",  # processes share processors with others
}


def remote(job: str, *arguments: Any) -> Any:
    """A job of which each rank is the only one of its host.

    The ranks end together: their processes end without closing buffers, and take along what is
    still on its way to others.
    """
    import torch.distributed as dist

    from harness.carriers import reached_by_tcp

    os.environ["MOEWIRE_HOST"] = f"host-{os.environ['RANK']}"
    with reached_by_tcp():
        answer = function_of(job)(*arguments)
        dist.barrier()
        return answer
