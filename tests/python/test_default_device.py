"""Moewire's tensors do not depend on torch's default device and dtype, which the caller sets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import moewire
from harness import jobs_default_device
from harness.team import Team

# torch's factories that take device and dtype from the defaults.
FACTORIES = {
    "arange",
    "as_tensor",
    "asarray",
    "empty",
    "empty_strided",
    "eye",
    "full",
    "linspace",
    "logspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "scalar_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
}
# Programs of their own, without anything else's defaults.
PROGRAMS = ("bench", "demo")


def unnamed(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each call of a factory that leaves device or dtype out."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, module = node.func.attr, node.func.value
        made = name in FACTORIES and isinstance(module, ast.Name) and module.id == "torch"
        if made and not {"device", "dtype"} <= {keyword.arg for keyword in node.keywords}:
            yield node.lineno, name


def test_every_tensor_names_its_device_and_dtype() -> None:
    package = Path(moewire.__file__).parent
    found, files = [], 0
    for path in sorted(package.rglob("*.py")):
        if path.relative_to(package).parts[0] not in PROGRAMS:
            files += 1
            found += [f"{path}:{line}: torch.{name}" for line, name in unnamed(path.read_text())]
    assert files > 50 and not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("torch.empty(3, dtype=a, device=b)", None),
        ("torch.empty(3, dtype=a)", 1),
        ("x = 1\ntorch.arange(3, device=b)", 2),
        ("torch.empty_like(x)", None),
        ("place.empty((3,), a)", None),
    ],
)
def test_the_rule_finds(source: str, line: int | None) -> None:
    assert [at for at, _ in unnamed(source)] == ([] if line is None else [line])


@pytest.mark.parametrize("job", jobs_default_device.JOBS, ids=lambda job: job.__name__)
def test_other_defaults_change_nothing(team: Team, job: object) -> None:
    team.run(2, jobs_default_device.under_other_defaults, job)
