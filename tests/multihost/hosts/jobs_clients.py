"""Jobs of DeepEP's clients, where ranks are on several hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.carriers import reached_by_tcp
from harness.member import Rank


def remote(rank: Rank, job: Callable[..., Any], *args: Any) -> Any:
    """A job in which at least one buffer reached a rank of another host."""
    with reached_by_tcp():
        return job(rank, *args)
