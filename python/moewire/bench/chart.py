"""Time per operation against T: lines of text always, a picture where matplotlib is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import MoewireError
from .cases import Case
from .report import kind_of

_MARKS = "o*x+#@%&"
_HEIGHT, _WIDTH = 16, 60
_NEEDS = "--plot needs matplotlib, which is not installed; install it with: pip install matplotlib"


# The same in every panel, for any operation; longer beginnings first.
_COLOURS = {
    "floor": "black",
    "moewire_combine_zero_copy": "tab:blue",
    "moewire_combine": "tab:cyan",
    "moewire_c": "tab:green",
    "moewire": "tab:blue",
    "gloo": "tab:red",
    "openmpi": "tab:purple",
    "mooncake": "tab:brown",
}


class Panel(NamedTuple):
    """One chart: lines of (T, microseconds) over the same R, H and dtype."""

    title: str
    lines: dict[str, list[tuple[int, float]]]


def panels(cases: Iterable[dict[str, Any]]) -> list[Panel]:
    """A panel per operation and group of cases that differ in T; those with one T are left out."""
    found: dict[str, Panel] = {}
    for case in sorted(cases, key=lambda case: int(case["tokens"])):
        for name, step in case["steps"].items():
            kind = kind_of(name)
            if kind:
                title = f"{kind}, R={case['ranks']} H={case['hidden']} {case['dtype']}"
                lines = found.setdefault(title, Panel(title, {})).lines
                lines.setdefault(name, []).append((case["tokens"], step["median_us"]))
        for name, pair in case.get("warm", {}).items():
            title = f"pairs without rest, R={case['ranks']} H={case['hidden']} {case['dtype']}"
            lines = found.setdefault(title, Panel(title, {})).lines
            lines.setdefault(name, []).append((case["tokens"], pair["median_us"]))
    return [panel for panel in found.values() if len(_all_tokens(panel)) > 1]


def _all_tokens(panel: Panel) -> set[int]:
    return {tokens for points in panel.lines.values() for tokens, _ in points}


def text(panel: Panel) -> str:
    """Both axes are logarithmic; a later line hides an earlier one."""
    points = [point for line in panel.lines.values() for point in line]
    across = _scale([math.log(tokens) for tokens, _ in points], _WIDTH - 1)
    up = _scale([math.log(value) for _, value in points], _HEIGHT - 1)
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for mark, line in zip(_MARKS, panel.lines.values(), strict=False):
        for tokens, value in line:
            grid[_HEIGHT - 1 - up(math.log(value))][across(math.log(tokens))] = mark
    highest, lowest = max(v for _, v in points), min(v for _, v in points)
    labels = {0: f"{highest:.0f} us", _HEIGHT - 1: f"{lowest:.0f} us"}
    rows = [f"{labels.get(i, ''):>12} |{''.join(row).rstrip()}" for i, row in enumerate(grid)]
    ticks = _ticks(sorted(_all_tokens(panel)), across)
    legend = "   ".join(f"{m} {name}" for m, name in zip(_MARKS, panel.lines, strict=False))
    return "\n".join(["", panel.title, *rows, f"{'T':>12} +{ticks}", f"{'':14}{legend}"])


def _scale(values: list[float], size: int) -> Any:
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return lambda value: round((value - low) / span * size)


def _ticks(tokens: list[int], across: Any) -> str:
    line = ""
    for number in tokens:
        line = line.ljust(across(math.log(number))) + str(number)
    return line


def save(all_panels: list[Panel], path: str) -> None:
    """Writes every panel into one picture; the ending of ``path`` says which kind."""
    pyplot = need_matplotlib()
    figure, axes = pyplot.subplots(
        1, len(all_panels), figsize=(5 * len(all_panels), 4), squeeze=False
    )
    for panel, axis in zip(all_panels, axes[0], strict=True):
        for name, points in panel.lines.items():
            look = {"color": _colour(name), "label": name.replace("_", " ")}
            axis.plot(*zip(*points, strict=True), marker="o", **look)
        axis.set(title=panel.title, xlabel="T", ylabel="us", xscale="log", yscale="log")
        axis.legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _colour(name: str) -> str:
    return next((c for who, c in _COLOURS.items() if name.startswith(who)), "tab:gray")


def need_lines(todo: Sequence[Case]) -> None:
    """Refuses cases of which no two could be joined by a line."""
    groups = [(case.ranks, case.hidden, case.dtype) for case in todo]
    if len(set(groups)) == len(groups):
        raise MoewireError("--plot: nothing to draw, because no two shapes differ in T alone")


def need_matplotlib() -> Any:
    """matplotlib's pyplot, without a display; a clear error where it is missing."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise MoewireError(_NEEDS) from None
    return pyplot
