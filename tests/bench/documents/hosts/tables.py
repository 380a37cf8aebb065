"""The results as text, for people."""

from __future__ import annotations

from typing import Any


def cell(found: dict[str, Any]) -> str:
    """One size over one link: a line per series."""
    of_link = "x link" if found["megabits"] else ""
    lines = [
        "",
        found["title"],
        f"{'':32}{'GB/s':>8}{'p10..p90':>18}{'x floor':>9}{of_link:>8}{'cpu s/GB':>10}",
    ]
    for name, series in found["series"].items():
        between = "..".join(
            f"{series[f'{part}_gigabytes_per_second']:.3f}" for part in ("p10", "p90")
        )
        mark = " (floor)" if name == found["floor"] else ""
        line = (
            f"{name + mark:32}{series['gigabytes_per_second']:8.3f}{between:>18}"
            f"{series['of_floor']:9.2f}{_number(series, 'of_link', 8)}"
            f"{series['processor_seconds_per_gigabyte']:10.2f}"
        )
        lines.append(line)
    return "\n".join(lines)


def exchange(found: dict[str, Any]) -> str:
    """All links of one number of ranks."""
    per_host = found["ranks"] // 2
    title = f"dispatch and combine, {per_host} + {per_host} ranks"
    lines = ["", title, _rows(found)]
    for link in found["links"]:
        of_link = "x link" if link["megabits"] else ""
        heading = f"{'median':>12}{'p10..p90':>21}{'x floor':>9}{of_link:>8}{'x gloo':>8}"
        lines.append(f"{link['title']:27}{heading}{'bytes/token':>13}")
        lines += [_step(name, step) for name, step in link["steps"].items()]
    return "\n".join(lines)


def _rows(found: dict[str, Any]) -> str:
    each = found["bytes_per_token"]
    return (
        f"bytes that a token needs at the other host: {each['per_expert']:.0f} with a row per "
        f"expert, {each['per_rank']:.0f} per rank, {each['per_host']:.0f} per host"
    )


def _step(name: str, step: dict[str, float]) -> str:
    between = f"{step['p10_us'] / 1e3:.2f}..{step['p90_us'] / 1e3:.2f}"
    return (
        f"{name:27}{step['median_us'] / 1e3:9.2f} ms{between:>18} ms"
        f"{step['times_floor']:9.2f}{_number(step, 'times_link', 8)}"
        f"{_number(step, 'times_faster_than_gloo', 8)}{step['wire_bytes_per_token']:13.0f}"
    )


def _number(found: dict[str, float], name: str, width: int) -> str:
    return f"{found[name]:{width}.2f}" if name in found else " " * width
