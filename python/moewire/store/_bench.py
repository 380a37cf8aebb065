"""``moewire store bench``: a server, next to a plain socket and a plain copy."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .._base.numbers import refuse
from ..errors import InvalidArgument, MoewireError
from ._ceiling import Copy, Socket
from ._child import Child
from ._client import Client
from ._parts import Namespace
from ._unstored import why_not_stored

KIB, MIB = 1 << 10, 1 << 20
_EXISTS_KEYS = 512
_BAR = 24
_MAX_SECONDS = 600


class Case(NamedTuple):
    """So many blocks of so many bytes in one request."""

    num_blocks: int
    num_bytes: int

    @property
    def name(self) -> str:
        size = self.num_bytes
        text = f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"
        return text if self.num_blocks == 1 else f"{self.num_blocks} x {text}"

    @property
    def total(self) -> int:
        return self.num_blocks * self.num_bytes


CASES = (Case(1, 4 * KIB), Case(1, 64 * KIB), Case(1, MIB), Case(16, 64 * KIB), Case(8, MIB))


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that ``stat`` does not have."""
    parser.add_argument("--seconds", type=float, default=1.0, help="per number (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    parser.add_argument(
        "--transport",
        choices=("auto", "shm", "tcp"),
        default="auto",
        help="what brings the blocks (%(default)s)",
    )


def main(options: argparse.Namespace) -> int:
    """Measures, and prints a table."""
    if not 0 < options.seconds <= _MAX_SECONDS:
        raise refuse("--seconds", options.seconds, f"more than 0, up to {_MAX_SECONDS}")
    if options.json:
        _write(options.json, "")  # before minutes are spent
    with _servers(options) as (servers, key_file, own):
        # One for all runs, because servers keep namespaces: the keys are those of this run alone.
        namespace = Namespace(salt="moewire store bench")
        with Client(
            servers,
            namespace=namespace,
            key_file=key_file,
            protection=options.protection,
            transport=options.transport,
            timeout_us=10_000_000,
        ) as client:
            rows = _Run(client, options.seconds, own).all()
    print("\n".join(table(rows)))
    if options.json:
        said = {
            "seconds": options.seconds,
            "transport": options.transport,
            "own_server": own is not None,
            "rows": rows,
        }
        _write(options.json, json.dumps(said, indent=2) + "\n")
    return 0


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise InvalidArgument(f"--json: {path}: {error.strerror}") from None


@contextmanager
def _servers(options: argparse.Namespace) -> Iterator[tuple[str | None, str | None, int | None]]:
    """The servers that are measured, their keys, and the process of one that is started here."""
    if options.servers or os.environ.get("MOEWIRE_STORE_SERVERS"):
        yield options.servers, options.key_file, None
        return
    with tempfile.TemporaryDirectory() as folder, Child(folder, options.protection) as child:
        yield child.address, str(child.key), child.pid


class _Run:
    """One run: keys that no other run has, and which are deleted when their case is over."""

    def __init__(self, client: Client, seconds: float, own: int | None) -> None:
        self.client, self.seconds, self.own = client, seconds, own
        self.tty = sys.stderr.isatty()
        self.busy = [0.0, 0.0]  # processor seconds of the step that is measured: here, there

    def all(self) -> list[dict[str, Any]]:
        rows = []
        with Socket() as socket:
            for case in CASES:
                rows += self._blocks(case, socket)
            rows.append(self._exists(socket))
        self._progress("")
        return rows

    def _blocks(self, case: Case, socket: Socket) -> list[dict[str, Any]]:
        keys = _keys(case.num_blocks)
        data = [secrets.token_bytes(case.num_bytes) for _ in keys]
        into = [bytearray(case.num_bytes) for _ in keys]
        copy = Copy(case.total)
        puts = _Puts(self.client, data, case)
        try:
            if not all(self.client.batch_put(keys, data)):
                raise MoewireError(f"{case.name}: {why_not_stored(self.client)}")
            steps: dict[str, Callable[[], object]] = {
                "get": lambda: self._get(keys, into, case),
                "socket": lambda: socket.ask(0, case.total),
                "copy": copy.run,
            }
            got = self._alternate(f"get {case.name}", steps)
            if into != data:
                raise MoewireError(f"{case.name}: other bytes came back")
            del steps["get"]
            steps = {"put": puts.step, **steps}
            steps["socket"] = lambda: socket.ask(case.total, 0)
            put = self._alternate(f"put {case.name}", steps, puts.clear)
        finally:
            puts.clear()
            self.client.delete(keys)
        return [
            summary(name, case.name, case.total, found)
            for name, found in (("get", got), ("put", put))
        ]

    def _get(self, keys: list[bytes], into: list[bytearray], case: Case) -> None:
        if self.client.batch_get_into(keys, into) != [case.num_bytes] * len(keys):
            raise MoewireError(f"get {case.name}: a block was not there")

    def _exists(self, socket: Socket) -> dict[str, Any]:
        keys = _keys(_EXISTS_KEYS)
        asked = sum(len(key) + 2 for key in keys)
        steps: dict[str, Callable[[], object]] = {
            "exists": lambda: self.client.exists(keys),
            "socket": lambda: socket.ask(asked, len(keys) // 8),
        }
        found = self._alternate(f"exists of {_EXISTS_KEYS} keys", steps)
        return summary("exists", f"{_EXISTS_KEYS} keys", 0, found)

    def _alternate(
        self,
        name: str,
        steps: dict[str, Callable[[], object]],
        between: Callable[[], None] | None = None,
    ) -> dict[str, list[float]]:
        """Times steps in turn, so that all of them see the same minutes."""
        times: dict[str, list[float]] = {step: [] for step in steps}
        first = next(iter(steps))
        self.busy = [0.0, 0.0]
        if not self.tty:
            print(name, file=sys.stderr, flush=True)
        end = time.monotonic() + self.seconds * len(steps)
        while not times[first] or time.monotonic() < end:
            self._progress(f"{name}: {len(times[first])}")
            for step, call in steps.items():
                times[step].append(self._watched(call) if step == first else _timed(call))
            if between is not None and len(times[first]) % _Puts.KEPT == 0:
                between()
        times["processor"] = [seconds / len(times[first]) for seconds in self.busy]
        return times

    def _watched(self, call: Callable[[], object]) -> float:
        """The time of a call, and in ``busy`` that of the processors at both ends."""
        here, there = time.process_time(), _busy(self.own)
        seconds = _timed(call)
        self.busy[0] += time.process_time() - here
        self.busy[1] += _busy(self.own) - there
        return seconds

    def _progress(self, text: str) -> None:
        if self.tty:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


class _Puts:
    """Puts blocks under new keys, and deletes them."""

    KEPT = 8  # puts that are there at a time

    def __init__(self, client: Client, data: list[bytes], case: Case) -> None:
        self.client, self.data, self.case = client, data, case
        self.there: list[list[bytes]] = []

    def step(self) -> None:
        keys = _keys(len(self.data))
        self.there.append(keys)
        if not all(self.client.batch_put(keys, self.data)):
            raise MoewireError(f"put {self.case.name}: {why_not_stored(self.client)}")

    def clear(self) -> None:
        while self.there:
            self.client.delete(self.there.pop())


def _keys(count: int) -> list[bytes]:
    return [secrets.token_bytes(16) for _ in range(count)]


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _busy(pid: int | None) -> float:
    """Processor seconds of a process; 0 for one that is not ours."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _share(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def summary(op: str, size: str, num_bytes: int, times: dict[str, list[float]]) -> dict[str, Any]:
    """One row: of the times of ``op`` and of what stands beside it.

    Args:
        op: the step that is measured.
        size: what it moves, in words.
        num_bytes: the bytes of blocks that one call moves; 0: none to speak of.
        times: seconds by step, and as "processor" those of both ends.

    Returns:
        Numbers by name; ``ratio_socket`` is the socket's median over that of the step.
    """
    p50 = _share(times[op], 0.5)
    here, there = times["processor"]
    row: dict[str, Any] = {
        "op": op,
        "size": size,
        "bytes": num_bytes,
        "count": len(times[op]),
        "p50_us": p50 * 1e6,
        "p99_us": _share(times[op], 0.99) * 1e6,
        "socket_p50_us": _share(times["socket"], 0.5) * 1e6,
        "ratio_socket": _share(times["socket"], 0.5) / p50,
    }
    if num_bytes:
        row["gb_per_s"] = num_bytes / p50 / 1e9
        row["socket_gb_per_s"] = num_bytes / _share(times["socket"], 0.5) / 1e9
        row["copy_gb_per_s"] = num_bytes / _share(times["copy"], 0.5) / 1e9
        row["ratio_copy"] = _share(times["copy"], 0.5) / p50
        row["client_s_per_gb"] = here / num_bytes * 1e9
        row["server_s_per_gb"] = there / num_bytes * 1e9 if there else None
    return row


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The lines that are printed: a row per operation, with a bar for its share of the socket."""
    lines = [
        f"{'':7}{'':>11}{'p50 us':>9}{'p99 us':>9}{'GB/s':>8}{'socket':>8}{'copy':>8}"
        f"{'s/GB':>12}  times the socket, times the copy"
    ]
    for row in rows:
        gb = "".join(
            f"{row[name]:8.2f}" if name in row else f"{'-':>8}"
            for name in ("gb_per_s", "socket_gb_per_s", "copy_gb_per_s")
        )
        lines.append(
            f"{row['op']:7}{row['size']:>11}{row['p50_us']:9.0f}{row['p99_us']:9.0f}{gb}"
            f"{_processors(row):>12}  {bar(row['ratio_socket'])} {row['ratio_socket']:.2f}"
            + (f" {row['ratio_copy']:.3f}" if "ratio_copy" in row else "")
        )
    lines.append("s/GB: processor seconds of this process, and of a server that was started here")
    return lines


def _processors(row: dict[str, Any]) -> str:
    if "client_s_per_gb" not in row:
        return "-"
    there = row["server_s_per_gb"]
    return f"{row['client_s_per_gb']:.2f} {'-' if there is None else f'{there:.2f}'}"


def bar(share: float) -> str:
    """A bar for a share; a longer one than the whole is as long as the whole."""
    full = round(max(0.0, min(1.0, share)) * _BAR)
    return "#" * full + "." * (_BAR - full)
