"""``moewire top``: ranks of this machine, second by second, at no cost to them; or servers."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ._observe import live, remote_peers

_CLEAR = "\x1b[H\x1b[2J"
_KINDS = ("dispatch", "combine")
_MAX_INTERVAL_S = 86_400
_LONG_S = 1.0  # such a wait says more than the operations that have ended
_ALIVE = ("runs", "idle", "waits", "stuck")  # states in which a wait counts


@dataclass
class Sample:
    """One rank at one moment."""

    time: float
    rank: live.Rank
    totals: dict[str, live.Totals]
    experts: list[int]
    waits_for: list[int]
    beat: int
    links: list[live.Link]

    @classmethod
    def of(cls, rank: live.Rank) -> Sample:
        area = rank.area
        now = time.monotonic()  # not before what was heard
        return cls(now, rank, area.totals, area.expert_rows, area.waits_for, area.beat, area.links)


Samples = dict[int, Sample]  # by inode of the rank's memory


def look() -> tuple[live.Found, Samples]:
    """Everything that can be seen now.

    Returns:
        The groups of this machine, and one sample per rank.
    """
    found = live.find()
    return found, {rank.inode: Sample.of(rank) for group in found.groups for rank in group.ranks}


def _difference(new: list[int], old: list[int] | None) -> list[int]:
    if old is None or len(old) != len(new):
        return list(new)
    return [a - b for a, b in zip(new, old, strict=True)]


def state(now: Sample, before: Sample | None, active: list[int]) -> str:
    """One word for how a rank is.

    Args:
        now: the rank's sample.
        before: its sample before; None: there is none.
        active: the ranks that are in the group; empty: not known.

    Returns:
        "dead", "frozen", "closed", "left", "stuck", "waits", "runs" or "idle".
    """
    rank = now.rank
    if not rank.alive:
        return "dead"
    if rank.process_state in ("T", "t"):
        return "frozen"
    if rank.area.closed:
        return "closed"
    if active and rank.rank not in active:
        return "left"
    if now.waits_for:
        still = before is not None and before.beat == now.beat
        return "stuck" if still and before is not None and before.waits_for else "waits"
    moved = before is None or before.rank.area.num_records != rank.area.num_records
    return "runs" if moved and rank.area.num_records else "idle"


def describe_rank(now: Sample, before: Sample | None, active: list[int]) -> dict[str, Any]:
    """One rank since the sample before.

    Args:
        now: the rank's sample.
        before: its sample before; None: since the rank's start.
        active: the ranks that are in the group; empty: not known.

    Returns:
        The rank's entry of the JSON that ``moewire top --json`` prints.
    """
    area = now.rank.area
    seconds = now.time - before.time if before else None
    found: dict[str, Any] = {
        "rank": area.rank,
        "pid": now.rank.pid,
        "state": state(now, before, active),
        "epoch": area.epoch,
        "waits_for": now.waits_for,
        "waits_s": _waits(now),
        "num_records": area.num_records,
        "recording": area.recording,
    }
    time_ns = wait_ns = 0
    last = [0] * area.num_ranks
    for kind in _KINDS:
        old = before.totals[kind] if before else None
        new = now.totals[kind]
        sums = {name: n - (old.sums[name] if old else 0) for name, n in new.sums.items()}
        count = sums["count"]
        found[kind] = {
            "count": count,
            "per_second": count / seconds if seconds else None,
            "us": sums["time_ns"] / count / 1e3 if count else None,
            "bytes_per_second": sums["num_bytes"] / seconds if seconds else None,
        }
        time_ns, wait_ns = time_ns + sums["time_ns"], wait_ns + sums["wait_ns"]
        late = _difference(new.last_count, old.last_count if old else None)
        last = [a + b for a, b in zip(last, late, strict=True)]
    found["wait_share"] = wait_ns / time_ns if time_ns else None
    found["last_count"] = last
    found["expert_rows"] = _difference(now.experts, before.experts if before else None)
    old_links = before.links if before else []
    found["links"] = remote_peers.describe_links(now.links, old_links, now.time, seconds)
    return found


def _waits(now: Sample) -> float | None:
    """For how long the operation that waits has lasted, s."""
    since = now.rank.area.current_since
    if not now.waits_for or not since:
        return None
    return max(0.0, now.time - since / 1e9)


def describe_group(group: live.Group, now: Samples, before: Samples) -> dict[str, Any]:
    """One group with all its ranks."""
    ranks = [
        describe_rank(now[rank.inode], before.get(rank.inode), group.active) for rank in group.ranks
    ]
    rows = [n for rank in ranks for n in rank["expert_rows"]]
    return {
        "group": group.id,
        "epoch": group.epoch,
        "active": group.active,
        "num_ranks": max((rank.area.num_ranks for rank in group.ranks), default=0),
        "slowest": slowest(ranks),
        "expert_imbalance": max(rows) * len(rows) / sum(rows) if sum(rows) > 0 else None,
        "ranks": ranks,
        "remote": remote_peers.together(ranks),
    }


def slowest(ranks: list[dict[str, Any]]) -> int | None:
    """The rank that others have waited for long, else the one that came last most often.

    A rank that has ended, left or is frozen in a wait does not wait any more, even if its memory
    says so.

    Args:
        ranks: the ranks of one group, as ``describe_rank`` gives them.

    Returns:
        A rank; None if no rank is at work.
    """
    votes: dict[int, float] = {}
    for rank in ranks:
        for other, count in enumerate(rank["last_count"]):
            if other != rank["rank"] and count:
                votes[other] = votes.get(other, 0) + count
        if rank["state"] in _ALIVE and (rank["waits_s"] or 0) > _LONG_S:
            for other in rank["waits_for"]:  # outweighs whatever ended in the meantime
                votes[other] = votes.get(other, 0) + 1e9 * rank["waits_s"]
    return max(votes, key=lambda rank: votes[rank]) if votes else None


class Seen(NamedTuple):
    """What one interval shows."""

    groups: list[dict[str, Any]]
    refused: list[str]  # ranks that are not in them, and why
    samples: Samples


def measure(before: Samples) -> Seen:
    """All groups since the samples before."""
    found, now = look()
    groups = [describe_group(group, now, before) for group in found.groups]
    return Seen(groups, [str(refused) for refused in found.refused], now)


_HEADING = (
    f"{'rank':>4} {'pid':>8} {'state':7} {'ops/s':>8} {'dispatch':>10} {'combine':>10} "
    f"{'wait':>5} {'GB/s':>6} {'came last':>9}  now"
)


def _time(us: float | None) -> str:
    if us is None:
        return "-"
    return f"{us:.0f} us" if us < 10_000 else f"{us / 1e3:.1f} ms"


def _line(rank: dict[str, Any]) -> str:
    kinds = [rank[kind] for kind in _KINDS]
    per_second = sum(kind["per_second"] or 0 for kind in kinds)
    gigabytes = sum(kind["bytes_per_second"] or 0 for kind in kinds) / 1e9
    share = "-" if rank["wait_share"] is None else f"{100 * rank['wait_share']:.0f}%"
    late = rank["last_count"]
    last = f"rank {max(range(len(late)), key=late.__getitem__)}" if any(late) else "-"
    pid = "-" if rank["pid"] is None else rank["pid"]
    return (
        f"{rank['rank']:>4} {pid:>8} {rank['state']:7} {per_second:>8.1f} "
        f"{_time(kinds[0]['us']):>10} {_time(kinds[1]['us']):>10} {share:>5} {gigabytes:>6.2f} "
        f"{last:>9}  {_now(rank)}"
    ).rstrip()


def _now(rank: dict[str, Any]) -> str:
    if not rank["recording"]:
        return "recording is off"
    if not rank["waits_for"]:
        return ""
    long = "" if rank["waits_s"] is None else f", {rank['waits_s']:.1f} s"
    names = ", ".join(map(str, rank["waits_for"]))
    return f"waits for rank {names}{long}"


def block(group: dict[str, Any]) -> list[str]:
    """A group as text."""
    missing = [rank for rank in range(group["num_ranks"]) if rank not in group["active"]]
    active = f"{len(group['active'])} of {group['num_ranks']} ranks active"
    if missing:
        active += f" (not {', '.join(map(str, missing))})"
    slow = "-" if group["slowest"] is None else f"rank {group['slowest']}"
    imbalance = group["expert_imbalance"]
    load = "-" if imbalance is None else f"{imbalance:.2f}"
    return [
        f"group {group['group']}: epoch {group['epoch']}, {active}, slowest {slow}, "
        f"fullest expert / mean {load}",
        _HEADING,
        *(_line(rank) for rank in group["ranks"]),
        *remote_peers.lines(group["remote"]),
    ]


def show(groups: list[dict[str, Any]], refused: Sequence[str] = ()) -> str:
    """All groups as text, then what is in none."""
    blocks = [block(group) for group in groups]
    if not blocks:
        blocks = [["no ranks of this user run on this machine"]]
    if refused:
        blocks.append(["not shown:", *(f"  {line}" for line in refused)])
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _watch(options: argparse.Namespace) -> None:
    _, before = look()
    while True:
        time.sleep(options.interval)
        groups, refused, before = measure(before)
        if options.json:
            print(json.dumps(groups), flush=True)
            for line in refused:
                print(f"not shown: {line}", file=sys.stderr, flush=True)
        else:
            _print(show(groups, refused), options.once)
        if options.once:
            return


def _watch_store(options: argparse.Namespace) -> None:
    from .store import _top  # loads the library, which ranks are watched without

    samples = _top.look(options.store or None, options.key_file, options.protection)
    with contextlib.closing(samples):
        for rows in _top.measure(samples, options.interval):
            if options.json:
                print(json.dumps(rows), flush=True)
            else:
                _print(_top.show(rows), options.once)
            if options.once:
                return


def _print(text: str, once: bool) -> None:
    if once or not sys.stdout.isatty():
        print(text + "\n" * (not once), flush=True)
        return
    size = shutil.get_terminal_size()
    lines = [line[: size.columns] for line in text.splitlines()[: size.lines - 1]]
    print(_CLEAR + "\n".join(lines), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until Ctrl-C, or once.

    Args:
        argv: the arguments; None: those of this process.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="moewire top", description=__doc__)
    parser.add_argument("--once", action="store_true", help="measure one interval, then end")
    parser.add_argument("--json", action="store_true", help="one line of JSON per interval")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds; default 1")
    parser.add_argument(
        "--store",
        nargs="?",
        const="",
        metavar="HOST:PORT",
        help="watch servers of blocks instead, several with commas (MOEWIRE_STORE_SERVERS)",
    )
    parser.add_argument("--key-file", help="with --store: the keys (default: MOEWIRE_KEY_FILE)")
    parser.add_argument("--protection", choices=("digest", "encrypt"), default="digest")
    options = parser.parse_args(argv)
    if not 0 < options.interval <= _MAX_INTERVAL_S:  # nor NaN
        parser.error(f"--interval: more than 0, at most {_MAX_INTERVAL_S}")
    try:
        (_watch if options.store is None else _watch_store)(options)
    except KeyboardInterrupt:
        print()
    return 0
