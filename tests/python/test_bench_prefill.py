"""``tests/bench prefill``: a tiny run, what it refuses, and its arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from documents import prefill
from documents.prefill import rank, shape
from documents.prefill.shape import Shape
from moewire.errors import InvalidArgument, MoewireError

TINY = "--ranks 2 --tokens 40 --experts 8 --hidden 256 --topk 2 --repeat 2 --held 5 --idle-wait 0"
T, H = 40, 256


@pytest.mark.all
def test_a_tiny_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of both types; the command compares them with gloo's itself."""
    out, text = tmp_path / "out.json", tmp_path / "out.md"
    assert prefill.main([*TINY.split(), "--json", str(out), "--markdown", str(text)]) == 0
    said = json.loads(out.read_text())
    assert [row["dtype"] for row in said["rows"]] == ["bf16", "fp8"] and said["absent"] == {}
    for row, row_bytes in zip(said["rows"], (2 * H, H + 4 * (H // 128)), strict=True):
        sides = ("moewire", "gloo", "floor")
        names = {f"{use} {side}" for use in ("scatter", "gather") for side in sides}
        assert set(row["steps"]) == names | {"routing moewire"}
        assert all(step["median_us"] >= step["min_us"] > 0 for step in row["steps"].values())
        assert T < row["num_rows"] <= 2 * T
        # Those of three tokens of four leave a rank, and words of all.
        for use, bytes_ in (("scatter", row_bytes), ("gather", 2 * H)):
            sent = row[f"{use}_bytes_per_token"] / bytes_
            assert 0.5 < sent < 1.5, (use, sent)
        assert row["held"] == 5 and row["routing_nbytes"] > 4 * T
    assert text.read_text() in capsys.readouterr().out
    assert "| R=2 T=40 E=8 H=256 fp8 | " in text.read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        "--ranks 0",
        "--tokens 0",
        "--experts 7",
        "--hidden 100",
        "--topk 9",
        "--dtypes fp4",
        "--repeat 0",
        "--held -1",
    ],
)
def test_refuses(wrong: str) -> None:
    option, given = wrong.split()
    with pytest.raises(InvalidArgument, match=f"{option} {given}: allowed: "):
        prefill.main([*TINY.split(), option, given])


def test_a_shape_without_memory_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shape, "_available", lambda: 300 << 20)
    assert prefill.main([*TINY.split(), "--dtypes", "fp8"]) == 0
    text = capsys.readouterr().out
    assert "R=2 T=40 E=8 H=256 fp8 was not measured: needs about 512 MiB, of which 300 are" in text


def test_other_results_are_no_result() -> None:
    def side(rows: int) -> SimpleNamespace:
        same = torch.ones(2)
        return SimpleNamespace(
            scatter=lambda: None,
            gather=lambda: None,
            rows=torch.full((2,), rows),
            scales=None,
            out=same,
        )

    rank._compare(side(1), side(1))  # type: ignore[arg-type]
    with pytest.raises(MoewireError, match="rows of Moewire and gloo differ"):
        rank._compare(side(1), side(2))  # type: ignore[arg-type]


def test_numbers() -> None:
    """A turn is its slowest rank's; the median of turns is compared, and the least."""
    names = ("routing moewire", *(f"{u} {s}" for u in ("scatter", "gather") for s in "mgf"))
    full = {"m": "moewire", "g": "gloo", "f": "floor"}
    names = tuple(name[:-1] + full[name[-1]] if name[-2] == " " else name for name in names)
    first = {name: [2e-6, 4e-6, 3e-6] for name in names}
    second = {name: [5e-6, 1e-6, 1e-6] for name in names}
    first["scatter floor"] = second["scatter floor"] = [1e-6, 2e-6, 4e-6]
    ranks = [{"samples": first, "num_rows": 10}, {"samples": second, "num_rows": 20}]
    row = rank.summary(Shape(2, 40, 8, 256, 2, "bf16"), ranks)
    assert row["steps"]["scatter moewire"] == pytest.approx(
        {"median_us": 4, "min_us": 3, "times_floor": 2, "min_times_floor": 3}
    )
    assert row["num_rows"] == 15 and row["shape"] == "R=2 T=40 E=8 H=256 bf16"
