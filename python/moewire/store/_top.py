"""``moewire top --store``: what servers of blocks do, second by second."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any

from ._client import Client
from ._parts import Namespace

Said = dict[str, Any] | None  # what a server says of itself; None: nothing
_ASKED = ("get", "put", "exists")
_TIMED = ("get", "put")
_HEADING = (
    f"{'server':21} {'clients':>7} {'runs':>4} {'gets/s':>8} {'puts/s':>8} {'exists/s':>8} "
    f"{'hits':>5} {'misses/s':>8} {'GB/s out':>8} {'GB/s in':>7} {'full':>5}"
)
_MORE = (
    f"{'':21} {'get p50':>9} {'get p99':>9} {'put p50':>9} {'put p99':>9} {'evicted/s':>9} "
    f"{'refused/s':>9} {'capped/s':>8} {'damaged':>7}"
)


def look(
    servers: str | None, key_file: str | None, protection: Any
) -> Generator[dict[str, Said], None, None]:
    """What servers say of themselves, as often as it is asked for.

    Args:
        servers: as for ``Client``.
        key_file: as for ``Client``.
        protection: as for ``Client``.

    Yields:
        The statistics of each server by its name.
    """
    with Client(
        servers,
        namespace=Namespace(salt="moewire store"),
        key_file=key_file,
        protection=protection,
        timeout_us=2_000_000,
    ) as client:
        while True:
            yield client.stats()["servers"]


def describe(name: str, now: Said, before: Said, seconds: float) -> dict[str, Any]:
    """One server since the sample before.

    Args:
        name: the server.
        now: what it says.
        before: what it said ``seconds`` ago; a server that began since then has said nothing.
        seconds: how long ago.

    Returns:
        Its entry of the JSON that ``moewire top --store --json`` prints.
    """
    if now is None:
        return {"server": name, "up": False}
    if before is None or before["started_s"] != now["started_s"]:
        before = {}
    hits, misses = (_more(now, before, "counts", key) for key in ("hits", "misses"))
    kept = now.get("store", {})
    evicted = sum(_more(now, before, "store", key) for key in kept if key.startswith("evicted_"))
    return {
        "server": name,
        "up": True,
        "draining": bool(now["draining"]),
        "clients": now["clients"],
        "running": now["requests_running"],
        "per_second": {code: _more(now, before, "requests", code) / seconds for code in _ASKED},
        "hit_share": hits / (hits + misses) if hits + misses else None,
        "misses_per_second": misses / seconds,
        "out_bytes_per_second": _more(now, before, "counts", "bytes_out") / seconds,
        "in_bytes_per_second": _more(now, before, "counts", "bytes_in") / seconds,
        **_times(now, before),
        "live_share": kept["live_bytes"] / kept["capacity_bytes"] if kept else None,
        "refused_per_second": sum(
            _more(now, before, "refused_puts", cause) for cause in now["refused_puts"]
        )
        / seconds,
        "evicted_per_second": evicted / seconds,
        "capped_per_second": _more(now, before, "counts", "capped") / seconds,
        "integrity_failures": now["counts"]["bad_puts"] + now["counts"]["bad_reads"],
    }


def _times(now: dict[str, Any], before: dict[str, Any]) -> dict[str, float | None]:
    found = {}
    for code in _TIMED:
        times = _histogram(now, before, code)
        for share in (50, 99):
            found[f"{code}_p{share}_us"] = _within(times, share / 100)
    return found


def _more(now: dict[str, Any], before: dict[str, Any], group: str, key: str) -> int:
    return int(now[group].get(key, 0)) - int(before.get(group, {}).get(key, 0))


def _histogram(now: dict[str, Any], before: dict[str, Any], code: str) -> list[int]:
    found = [said.get("latency", {}).get(code, {}).get("time_histogram") for said in (now, before)]
    new = found[0] or []
    old = found[1] or [0] * len(new)
    return [a - b for a, b in zip(new, old, strict=True)]


def _within(times: list[int], share: float) -> float | None:
    """The microseconds within which a share of the requests ended: a power of two nanoseconds."""
    seen, all_of_them = 0, sum(times)
    for i, count in enumerate(times):
        seen += count
        if all_of_them and seen >= share * all_of_them:
            return (1 << i) / 1e3
    return None


def show(rows: list[dict[str, Any]]) -> str:
    """All servers as text: what they do, and below how they fare."""
    up = [row for row in rows if row["up"]]
    return "\n".join([_HEADING, *map(_line, rows), *([_MORE] if up else []), *map(_fares, up)])


def _line(row: dict[str, Any]) -> str:
    if not row["up"]:
        return f"{row['server']:21} no answer"
    asked = row["per_second"]
    line = (
        f"{row['server']:21} {row['clients']:>7} {row['running']:>4} {asked['get']:>8.0f} "
        f"{asked['put']:>8.0f} {asked['exists']:>8.0f} {_percent(row['hit_share']):>5} "
        f"{row['misses_per_second']:>8.0f} "
        f"{row['out_bytes_per_second'] / 1e9:>8.2f} {row['in_bytes_per_second'] / 1e9:>7.2f} "
        f"{_percent(row['live_share']):>5}"
    )
    return f"{line}  draining" if row["draining"] else line


def _fares(row: dict[str, Any]) -> str:
    times = " ".join(
        f"{_time(row[f'{code}_p{share}_us']):>9}" for code in _TIMED for share in (50, 99)
    )
    return (
        f"{row['server']:21} {times} {row['evicted_per_second']:>9.0f} "
        f"{row['refused_per_second']:>9.0f} {row['capped_per_second']:>8.0f} "
        f"{row['integrity_failures']:>7}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _time(us: float | None) -> str:
    if us is None:
        return "-"
    return f"<{us:.0f} us" if us < 10_000 else f"<{us / 1e3:.0f} ms"


def measure(samples: Iterator[dict[str, Said]], interval: float) -> Iterator[list[dict[str, Any]]]:
    """One list of entries per interval.

    Args:
        samples: of ``look``.
        interval: seconds between them.

    Yields:
        What ``describe`` says of each server.
    """
    before, since = next(samples), time.monotonic()
    while True:
        time.sleep(interval)
        now, at = next(samples), time.monotonic()
        yield [describe(name, said, before.get(name), at - since) for name, said in now.items()]
        before, since = now, at
