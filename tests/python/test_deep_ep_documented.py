"""docs/deep_ep.md has every public name of moewire.deep_ep, with its arguments in their order."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import moewire.deep_ep
import moewire.deep_ep.hybrid_ep_buffer
import moewire.deep_ep.utils

PAGE = Path(__file__).resolve().parents[2] / "docs" / "deep_ep.md"
HEAD = "| name | arguments | here |"
# Sections with names of one class, which stand there alone. Elsewhere the class comes before them.
SECTIONS = {
    "Buffer": ("Low-latency mode", "Normal mode"),
    "ElasticBuffer": ("ElasticBuffer",),
    "HybridEPBuffer": ("HybridEPBuffer",),
}
NOT_CONSTRUCTED = {"EPHandle"}
CLASSES = [
    name
    for name in moewire.deep_ep.__all__
    if inspect.isclass(getattr(moewire.deep_ep, name)) and name not in NOT_CONSTRUCTED
]


def _rows(section: str) -> Iterator[tuple[str, list[str]]]:
    """The names of a section's table, each with its arguments."""
    text = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (part,) = (one for one in text if one.startswith(f"{section}\n"))
    table = part.split(HEAD, 1)[1].split("\n\n", 1)[0]
    for line in table.strip().splitlines()[1:]:
        names, arguments, _ = (cell.strip() for cell in line.strip("|").split("|", 2))
        listed = arguments.strip("`")
        for name in re.findall(r"`([\w.]+)`", names):
            yield name, listed.split(", ") if listed else []


def _documented(cls: str) -> dict[str, list[str]]:
    """By name: of the class itself under its own name, of its parts without it."""
    if cls in SECTIONS:
        return dict(row for section in SECTIONS[cls] for row in _rows(section))
    rows = dict(_rows("Config, handles and events"))
    parts = {name.removeprefix(f"{cls}."): found for name, found in rows.items()}
    return {name: parts[name] for name in parts if name == cls or f"{cls}.{name}" in rows}


def _arguments(called: object) -> list[str]:
    return [name for name in inspect.signature(called).parameters if name != "self"]


def _public(cls: str) -> dict[str, list[str]]:
    """The calls of a class, and itself, with their arguments."""
    one = getattr(moewire.deep_ep, cls)
    names = [name for name in dir(one) if not name.startswith("_") and callable(getattr(one, name))]
    return {cls: _arguments(one), **{name: _arguments(getattr(one, name)) for name in names}}


@pytest.mark.parametrize("cls", CLASSES)
def test_every_call_with_its_arguments(cls: str) -> None:
    documented = _documented(cls)
    for name, arguments in _public(cls).items():
        assert name in documented, f"{cls}.{name} is not in {PAGE.name}"
        assert documented[name] == arguments, f"{cls}.{name}"


@pytest.mark.parametrize("cls", ["Config", "EPHandle"])
def test_every_attribute(cls: str) -> None:
    """Those that the class has or that its constructor sets."""
    one = getattr(moewire.deep_ep, cls)
    found = {name for name in dir(one) if not name.startswith("_")}
    found |= set(re.findall(r"self\.([a-z]\w*)(?:: [^=\n]+)? = ", inspect.getsource(one)))
    if cls == "Config":  # its attributes are its arguments
        found -= set(_arguments(one))
    assert found - set(_documented(cls)) == set()


def test_names_of_the_modules() -> None:
    text = PAGE.read_text()
    for module in (moewire.deep_ep, moewire.deep_ep.utils, moewire.deep_ep.hybrid_ep_buffer):
        missing = {name for name in module.__all__ if f"`{name}`" not in text} - {"__version__"}
        assert not missing, module.__name__
    helper = moewire.deep_ep.hybrid_ep_buffer.indices_to_map
    assert _documented("HybridEPBuffer")["indices_to_map"] == _arguments(helper)
