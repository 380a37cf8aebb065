"""The traffic as an image: SVG, which needs nothing, and PNG where matplotlib is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from .traffic import Traffic

CELL, GAP, LEFT, TOP = 64, 4, 90, 96
DARK = (18, 60, 105)  # of the scale from white
INK = "#1b2733"


def write(path: Path, traffic: Traffic) -> list[Path]:
    """Writes ``path`` as .svg, and beside it the .png; says what was written."""
    svg = path.with_suffix(".svg")
    svg.write_text(to_svg(traffic))
    written = [svg]
    if importlib.util.find_spec("matplotlib") is not None:
        written.append(path.with_suffix(".png"))
        write_png(written[-1], traffic)
    return written


def to_svg(traffic: Traffic) -> str:
    """One document: the matrix of ranks on the left, the load of experts on the right."""
    matrix, load = traffic.matrix, traffic.load
    size = traffic.num_ranks * (CELL + GAP)
    right = LEFT + size + 110
    cell = max(20, size // len(load[0]))
    height = max(TOP + size + 50, TOP + len(load) * 44 + 50)
    width = right + len(load[0]) * (cell + GAP) + 30
    body = [
        _text(LEFT, 32, f"Moewire: {traffic.total} rows between {traffic.num_ranks} processes", 18),
        _text(LEFT, TOP - 28, "rows sent: from (down), to (across)", 13),
        *_grid(matrix, LEFT, TOP, CELL, CELL, "rank", "rank", numbers=True),
        _text(right, TOP - 28, "rows computed: layer (down), expert (across)", 13),
        *_grid(load, right, TOP, cell, 40, "layer", "", numbers=False),
        *_owners(traffic, right, TOP + len(load) * 44 + 14, cell),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" fill="{INK}">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _grid(
    values: Sequence[Sequence[int]],
    left: int,
    top: int,
    width: int,
    height: int,
    row_name: str,
    column_name: str,
    *,
    numbers: bool,
) -> list[str]:
    most = max(max(row) for row in values) or 1
    parts: list[str] = []
    for j in range(len(values[0])):
        x = left + j * (width + GAP) + width / 2
        parts.append(_text(x, top - 8, f"{column_name} {j}".strip(), 11, "middle"))
    for i, row in enumerate(values):
        y = top + i * (height + GAP)
        parts.append(_text(left - 8, y + height / 2 + 4, f"{row_name} {i}", 11, "end"))
        for j, value in enumerate(row):
            x = left + j * (width + GAP)
            share = value / most
            parts.append(
                f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" '
                f'fill="{_shade(share)}"><title>{value} rows</title></rect>'
            )
            if numbers:
                ink = "white" if share > 0.5 else INK
                x_middle, y_middle = x + width / 2, y + height / 2 + 5
                parts.append(_text(x_middle, y_middle, str(value), 13, "middle", ink))
    return parts


def _owners(traffic: Traffic, left: int, y: int, cell: int) -> list[str]:
    """Under the experts: which rank has them."""
    local = len(traffic.load[0]) // traffic.num_ranks
    parts: list[str] = []
    for rank in range(traffic.num_ranks):
        x = left + rank * local * (cell + GAP)
        width = local * (cell + GAP) - 2 * GAP
        parts.append(f'<rect x="{x}" y="{y - 10}" width="{width}" height="2" fill="{INK}"/>')
        parts.append(_text(x + width / 2, y + 8, f"on rank {rank}", 11, "middle"))
    return parts


def _shade(share: float) -> str:
    red, green, blue = (round(244 + (dark - 244) * share) for dark in DARK)
    return f"rgb({red},{green},{blue})"


def _text(x: float, y: float, text: str, size: int, anchor: str = "start", fill: str = INK) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{fill}">{text}</text>'
    )


def write_png(path: Path, traffic: Traffic) -> None:
    """The same two pictures by matplotlib, without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1, 2))
    left.imshow(traffic.matrix, cmap="Blues", vmin=0)
    left.set(title="rows sent", xlabel="to rank", ylabel="from rank")
    ranks = range(traffic.num_ranks)
    left.set_xticks(ranks)
    left.set_yticks(ranks)
    most = max(map(max, traffic.matrix))
    for i, row in enumerate(traffic.matrix):
        for j, value in enumerate(row):
            ink = "white" if value > 0.6 * most else "black"
            left.text(j, i, str(value), ha="center", va="center", color=ink, size=8)
    right.imshow(traffic.load, cmap="Blues", vmin=0, aspect="auto")
    right.set(title="rows computed", xlabel="expert", ylabel="layer")
    right.set_xticks(range(len(traffic.load[0])))
    right.set_yticks(range(len(traffic.load)))
    local = len(traffic.load[0]) // traffic.num_ranks
    for rank in range(1, traffic.num_ranks):
        right.axvline(rank * local - 0.5, color="black", linewidth=1)
    figure.savefig(path, dpi=130)
