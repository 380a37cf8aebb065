"""``moewire demo`` and examples/generate.py: the trained model over several processes."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from moewire import demo
from moewire.demo import picture
from moewire.demo.traffic import RankTraffic, Traffic

ROOT = Path(__file__).resolve().parents[2]
NEEDED = demo.NEEDED


@pytest.mark.slow
@pytest.mark.multirank
def test_demo(start, tmp_path: Path) -> None:
    """Four processes and one process write the same; the counts fit; pictures are written."""
    output = start(sys.executable, "-m", "moewire", "demo").stdout
    assert re.search(r"ok +8 texts, \d+ tokens: equal, token for token", output)
    assert "ok   all logits equal to the last bit" in output or "depend on the number" in output
    assert "ok   the core's row counters equal steps × layers × routed rows" in output
    assert "BAD" not in output
    assert output.count(", same") == 8
    rows = re.findall(r"^ +(\d) +(\d+) +(\d+) +(\d+) +× 4 × 2 = (\d+) +(\d+) +", output, re.M)
    assert [int(row[0]) for row in rows] == [0, 1, 2, 3]
    assert len({row[1] for row in rows}) == 1  # every rank took part in every step
    assert any(int(row[2]) > 0 for row in rows)  # somebody joined with T = 0
    for _, _, _, tokens, routed, sent in rows:
        assert int(sent) == int(routed) == int(tokens) * 4 * 2
    ElementTree.parse(tmp_path / "moewire-demo.svg")
    if importlib.util.find_spec("matplotlib") is not None:
        assert (tmp_path / "moewire-demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.multirank
def test_demo_notices_a_corrupted_combine(start, wrong_library: str) -> None:
    command = (sys.executable, "-m", "moewire", "demo")
    wrong = {"MOEWIRE_LIBRARY": wrong_library, "MOEWIRE_TEST_CORRUPT": "1"}
    output = start(*command, status=1, **wrong).stdout
    assert re.search(r"BAD +the logits of \d+ tokens differ", output) or "BAD  texts" in output


@pytest.mark.all
@pytest.mark.slow
@pytest.mark.multirank
def test_generate_under_torchrun(start, tmp_path: Path) -> None:
    """Own prompts, on more ranks than prompts; greedy."""
    output = start(
        "torchrun", "--standalone", "--nproc-per-node", "2", ROOT / "examples" / "generate.py",
        "--prompt", "Émile said", "--tokens", "24", "--temperature", "0",
        "--picture", tmp_path / "traffic.svg",
    ).stdout  # fmt: skip
    assert re.search(r"ok   1 texts?, 24 tokens: equal, token for token", output)
    assert "BAD" not in output
    rows = re.findall(r"^ +(\d) +24 +(\d+) +(\d+) +× 4 × 2 = ", output, re.M)
    assert [(int(joined), int(tokens) > 0) for _, joined, tokens in rows] == [
        (0, True),
        (24, False),
    ]
    ElementTree.parse(tmp_path / "traffic.svg")


def test_demo_names_missing_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "NEEDED", ("sys", "no_such_package"))
    assert demo.main([]) == 1
    assert "pip install no_such_package" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", ["0", "1", "3", "32"])
def test_demo_names_wrong_numbers_of_ranks(ranks: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--ranks", ranks])
    assert f"--ranks: {ranks}; 16 experts can be spread over [2, 4, 8, 16]" in (
        capsys.readouterr().err
    )


def _traffic(**changes: int) -> Traffic:
    """Two ranks, two layers, four experts, top-1, three steps; rank 0 sends 4 rows, rank 1 2."""
    common = {"num_layers": 2, "num_dispatches": 6, "num_combines": 6}
    first = RankTraffic(
        num_tokens=2, num_routed=4, sent=4, received=3, reduced=4, sent_to=[3, 1],
        rows_per_expert=[[1, 1], [1, 0]], **common,
    )  # fmt: skip
    second = RankTraffic(
        num_tokens=1, num_routed=2, sent=2, received=3, reduced=2, sent_to=[0, 2],
        rows_per_expert=[[1, 1], [0, 1]], **common,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(second, name, value)
    return Traffic([first, second])


def test_counts_that_fit() -> None:
    assert _traffic().differences(num_steps=3) == []


@pytest.mark.parametrize(
    "change", ["num_dispatches", "num_combines", "sent", "received", "reduced", "num_routed"]
)
def test_counts_that_do_not_fit_are_named(change: str) -> None:
    (difference, *_) = _traffic(**{change: 99}).differences(num_steps=3)
    assert difference.startswith("rank 1: ") and "99" in difference


def test_picture_shows_every_number() -> None:
    texts = [one.text for one in ElementTree.fromstring(picture.to_svg(_traffic())).iter()]
    assert {"3", "1", "0", "2", "rank 0", "on rank 1", "layer 1"} <= set(texts)
    assert "Moewire: 6 rows between 2 processes" in texts
