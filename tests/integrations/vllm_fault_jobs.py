"""A life of vLLM in which the store's server is struck by a signal as a load begins."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import vllm_store_jobs as jobs

_SOON = 20.0  # seconds


def life(
    _rank: int,
    _size: int,
    _folder: Path,
    model: str,
    tier: dict[str, Any],
    server: int,
    name: str,
) -> dict[str, Any]:
    """Each prompt by itself, and what the store's client counts after each of them."""
    llm = jobs.engine(model, tier)
    ours = jobs.tier_of(llm)
    _strike(ours, server, signal.Signals[name])
    answers, client = [], []
    for ids in jobs.prompts():
        answers.append(jobs.text(llm, ids))
        client.append(ours._requests._client.stats())
    result = {
        "ids": [one["ids"] for one in answers],
        "cached": [one["cached"] for one in answers],
        "late": [one["late"] for one in client],
        "broken": client[-1]["broken"],
        "servers": list(client[-1]["servers"].values()),
        "counts": asdict(ours._counts),
    }
    llm.llm_engine.engine_core.shutdown()
    return result


def _strike(tier: Any, server: int, number: signal.Signals) -> None:
    """Before the first load goes to the store, and never again."""
    load = tier.submit_load

    def struck(*arguments: Any, **named: Any) -> None:
        tier.submit_load = load
        os.kill(server, number)
        _wait_until_struck(server)
        load(*arguments, **named)

    tier.submit_load = struck


def _wait_until_struck(server: int) -> None:
    """It is stopped, or has ended and waits for its parent."""
    end = time.monotonic() + _SOON
    while time.monotonic() < end:
        state = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[0]
        if state in "TZX":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {server} goes on")
