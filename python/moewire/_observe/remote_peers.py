"""Ranks of other hosts in ``moewire top``, as the ranks of this host see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import live

_WORST = {state: number for number, state in live.LINK_STATES.items()}
_COUNTS: tuple[str, ...] = ("num_messages_sent", "num_bytes_sent")
_COUNTS += ("num_messages_received", "num_bytes_received")
_COUNTS += ("num_blocked", "num_dropped", "num_ignored")
HEADING = (
    f"{'remote':>6} {'carrier':>8} {'state':12} {'MB/s out':>10} {'MB/s in':>10} "
    f"{'blocked/s':>9} {'heard':>10}"
)


def describe_link(
    now: live.Link, before: live.Link | None, time_s: float, seconds: float | None
) -> dict[str, Any]:
    """One link of one rank; the counts are those since the sample before."""
    found: dict[str, Any] = {"rank": now.rank, "carrier": now.carrier, "state": now.state}
    for name in _COUNTS:
        found[name] = getattr(now, name) - (getattr(before, name) if before else 0)
    for way in ("sent", "received"):
        bytes_ = found[f"num_bytes_{way}"]
        found[f"bytes_{way}_per_second"] = bytes_ / seconds if seconds else None
    found["blocked_per_second"] = found["num_blocked"] / seconds if seconds else None
    found["num_credits"], found["num_max_credits"] = now.num_credits, now.num_max_credits
    found["heard_s"] = max(0.0, time_s - now.heard_ns / 1e9) if now.heard_ns else None
    return found


def describe_links(
    now: Iterable[live.Link], before: Iterable[live.Link], time_s: float, seconds: float | None
) -> list[dict[str, Any]]:
    """The links of one rank, by remote rank."""
    old = {link.rank: link for link in before}
    return [describe_link(link, old.get(link.rank), time_s, seconds) for link in now]


def together(ranks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each remote rank once, as the living ranks of this host see it: the sum of the traffic over
    their links, the worst state, the longest silence.
    """
    links: dict[int, list[dict[str, Any]]] = {}
    for rank in ranks:
        for link in rank["links"] if rank["state"] not in ("dead", "frozen") else ():
            links.setdefault(link["rank"], []).append(link)
    return [_one(number, found) for number, found in sorted(links.items())]


def _one(number: int, links: list[dict[str, Any]]) -> dict[str, Any]:
    heard = [link["heard_s"] for link in links if link["heard_s"] is not None]
    return {
        "rank": number,
        "carrier": "/".join(sorted({link["carrier"] for link in links})),
        "state": max((link["state"] for link in links), key=lambda s: _WORST.get(s, 0)),
        "bytes_sent_per_second": _sum(links, "bytes_sent_per_second"),
        "bytes_received_per_second": _sum(links, "bytes_received_per_second"),
        "blocked_per_second": _sum(links, "blocked_per_second"),
        "heard_s": max(heard, default=None),
    }


def _sum(links: list[dict[str, Any]], name: str) -> float | None:
    values = [link[name] for link in links if link[name] is not None]
    return sum(values) if values else None


def lines(remote: list[dict[str, Any]]) -> list[str]:
    """A block of text; none if no rank is remote."""
    return [HEADING, *map(_line, remote)] if remote else []


def _line(remote: dict[str, Any]) -> str:
    out, come = remote["bytes_sent_per_second"], remote["bytes_received_per_second"]
    blocked = remote["blocked_per_second"]
    return (
        f"{remote['rank']:>6} {remote['carrier']:>8} {remote['state']:12} "
        f"{_mega(out):>10} "
        f"{_mega(come):>10} "
        f"{'-' if blocked is None else f'{blocked:.0f}':>9} {_ago(remote['heard_s']):>10}"
    )


def _mega(bytes_per_second: float | None) -> str:
    return "-" if bytes_per_second is None else f"{bytes_per_second / 1e6:.2f}"


def _ago(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return f"{seconds * 1e3:.0f} ms ago" if seconds < 1 else f"{seconds:.1f} s ago"
