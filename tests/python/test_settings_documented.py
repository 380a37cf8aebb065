"""Every argument of a buffer, and every variable that stands for one, is documented."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import get_args, get_type_hints

import moewire
from moewire._config import reach
from moewire._config.tuning import Tuning

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
# Arguments that are no settings: the group, and names kept for compatibility.
NO_SETTINGS = {"self", "group", "disable_p2p", "tuning"}
# These have no variable.
ALONE = {"stores", "prefetch", "huge_pages", "numa", "num_threads", "spin_us", "device"}


def test_arguments_are_in_the_table() -> None:
    named = set(inspect.signature(moewire.Buffer.__init__).parameters) - NO_SETTINGS
    named |= set(inspect.get_annotations(Tuning)) | set(inspect.get_annotations(reach.Reach))
    of_buffer = PAGE.read_text().partition("## Of a fabric")[0]
    table = set(re.findall(r"^\| `(\w+)` \|", of_buffer, re.MULTILINE))
    assert named == table


def test_choices_are_in_the_table() -> None:
    """Names that the code, the types and the row of a setting have."""
    rows = PAGE.read_text().partition("## Of a fabric")[0]
    hints = get_type_hints(reach.Reach)
    for name, choices in (
        ("transport", reach.TRANSPORTS),
        ("protection", reach.PROTECTIONS),
        ("tcp_zero_copy", reach.ZERO_COPIES),
    ):
        row = next(line for line in rows.splitlines() if line.startswith(f"| `{name}` |"))
        assert list(get_args(hints[name])) == list(choices)
        assert re.findall(r'`"(\w+)"`', row) == list(choices)


def test_variables_are_listed() -> None:
    variables = {f"MOEWIRE_{name.upper()}" for name in set(Tuning.__annotations__) - ALONE}
    variables |= {f"MOEWIRE_{name.upper()}" for name in reach.Reach.__annotations__}
    for text in (PAGE.read_text(), inspect.getdoc(moewire.Buffer) or ""):
        assert variables <= set(re.findall(r"MOEWIRE_[A-Z_]+", text))


def test_what_the_package_reads_is_listed() -> None:
    """Every variable that stands in the package's code by its whole name."""
    package = Path(moewire.__file__).parent
    named = re.compile(r'"(MOEWIRE_[A-Z_]+[A-Z])"')
    read = {name for path in package.rglob("*.py") for name in named.findall(path.read_text())}
    assert len(read) > 15
    assert read <= set(re.findall(r"MOEWIRE_[A-Z_]+[A-Z]", PAGE.read_text()))
