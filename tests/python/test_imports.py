"""What imports what inside the package: its folders are layers, and there is no circle.

Read from the sources; nothing is imported.

Every import counts: at the top of a module, inside a function, and under ``TYPE_CHECKING``. One
that is made late or for types alone hides a circle, and does not undo it: neither side can be read
or changed without the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python" / "moewire"
Graph = dict[str, set[str]]
# The folders and the files at the top, from what uses everything to what everything may use. An
# import goes to a lower line.
LAYERS = (
    "__main__ bench demo doctor",
    "cli deep_ep integrations ops",
    "autograd compat top",
    "buffer",
    "_member fabric store",
    "_config trace",
    "_cpu _cuda",
    "_ep",
    "_observe _rendezvous event handle",
    "_native",
    "_base",
    "_abi _version errors",
)


def name_of(path: Path, root: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, name: str, known: set[str]) -> Iterator[str]:
    """The modules of the package that a file imports, each as the longest name that there is."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield from ({inner if inner in known else module} & known)


def graph_of(root: Path) -> Graph:
    files = {name_of(path, root): path for path in root.rglob("*.py")}
    known = set(files)
    return {name: {*imported(path, name, known)} - {name} for name, path in files.items()}


def circles(graph: Graph) -> list[list[str]]:
    """The groups of modules that reach one another."""
    reach: Graph = {}
    for name in graph:
        seen, todo = set[str](), [*graph[name]]
        while todo:
            found = todo.pop()
            if found not in seen:
                seen.add(found)
                todo += graph[found]
        reach[name] = seen
    groups = {
        tuple(sorted(other for other in reach[name] if name in reach[other]))
        for name in graph
        if name in reach[name]
    }
    return [list(group) for group in sorted(groups)]


def test_there_is_no_circle() -> None:
    graph = graph_of(PACKAGE)
    assert len(graph) > 100
    assert circles(graph) == []


def room_of(name: str) -> str:
    """The folder or file at the top of the package; "" for the package itself."""
    return [*name.split("."), ""][1]


def arrows(graph: Graph) -> set[tuple[str, str]]:
    pairs = {(room_of(name), room_of(other)) for name in graph for other in graph[name]}
    return {(room, other) for room, other in pairs if room and other and room != other}


def upwards(found: set[tuple[str, str]], layers: tuple[str, ...]) -> list[str]:
    """The arrows that do not go down, and rooms without a line."""
    listed = [(room, number) for number, rooms in enumerate(layers) for room in rooms.split()]
    line = dict(listed)
    assert len(line) == len(listed), "a room is in two lines"
    missing = {room for arrow in found for room in arrow if room not in line}
    bad = [f"{a} -> {b}" for a, b in found if {a, b} <= line.keys() and line[a] >= line[b]]
    return [*sorted(missing), *sorted(bad)]


def test_imports_go_down() -> None:
    found = arrows(graph_of(PACKAGE))
    assert upwards(found, LAYERS) == []
    assert upwards(found, LAYERS[::-1]) != []


@pytest.mark.parametrize(
    "text",
    [
        "from . import b\n",
        "from .b import thing\n",
        "import box.b\n",
        "def late():\n    from .b import thing\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import thing\n",
        "from .inner import deep\n",
    ],
)
def test_every_kind_of_import_closes_a_circle(tmp_path: Path, text: str) -> None:
    root = tmp_path / "box"
    (root / "inner").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "inner" / "__init__.py").write_text("from ..b import thing\n")
    (root / "a.py").write_text(text)
    (root / "b.py").write_text("from . import a\n")
    (found,) = circles(graph_of(root))
    assert {"box.a", "box.b"} <= {*found}


def test_one_place_chooses_the_engine() -> None:
    graph = graph_of(PACKAGE)
    for engine in ("moewire._cpu.engine", "moewire._cuda.engine"):
        assert [name for name in graph if engine in graph[name]] == ["moewire._member"]
