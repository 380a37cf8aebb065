"""What imports what inside the package: no circles. Read from the sources; nothing is imported.

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
