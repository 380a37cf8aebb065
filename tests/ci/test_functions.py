"""The product's functions and files in Python are short, as in Go (``tests/boundaries``)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST = 40  # lines, without the signature and the docstring
MOST_IN_A_FILE = 400
GENERATED = "python/moewire/_abi.py"


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[ast.get_docstring(function) is not None :]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def long_functions(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines_of(node) > MOST:
            yield f"{node.name} has {lines_of(node)} lines"


def product() -> list[Path]:
    folders = (".ci", "examples", "python/moewire", "wheels")
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def test_functions_are_short() -> None:
    assert len(product()) > 100
    found = {path: [*long_functions(path.read_text())] for path in product()}
    assert {path: long for path, long in found.items() if long} == {}


def test_files_are_short() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in product()}
    assert [path for path, n in lines.items() if n > MOST_IN_A_FILE] == [ROOT / GENERATED]


@pytest.mark.parametrize("head", ["def f(", "async def f("])
def test_a_long_function_is_found(head: str) -> None:
    signature = head + "\n    a: int,\n    b: int,\n):\n"
    docstring = '    """Text.\n\n    More.\n    """\n'
    for lines, found in ((MOST, []), (MOST + 1, [f"f has {MOST + 1} lines"])):
        text = signature + docstring + "    a\n" * lines
        assert [*long_functions(text)] == found


def test_methods_count_and_docstrings_do_not() -> None:
    inside = "class C:\n    def f(self):\n" + "        self\n" * (MOST + 1)
    assert [*long_functions(inside)] == [f"f has {MOST + 1} lines"]
    assert [*long_functions('def f():\n    """Text."""\n')] == []
