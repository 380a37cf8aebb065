"""Locks have hashes, and what `make` installs is checked against them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".ci"))

import lock  # noqa: E402
from outcome import StepError  # noqa: E402

LOCKS = sorted(
    path for path in ROOT.glob("*/**/*.txt")
    if path.parts[len(ROOT.parts)] in ("tests", "wheels") and "==" in path.read_text()
    and path.name != "vllm-overrides.txt"
)  # fmt: skip


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_pin_has_hashes(path: Path) -> None:
    for block in re.split(r"\n(?=\S)", path.read_text()):
        if "==" in block and not block.startswith("#"):
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block


def test_locks_are_found() -> None:
    assert {"requirements.txt", "build-constraints.txt", "ray-requirements.txt"} <= {
        path.name for path in LOCKS
    }


class Commands:
    """Notes the commands and what the files that they name hold."""

    def __init__(self, fails: str = "") -> None:
        self.seen: list[str] = []
        self.fails = fails

    def __call__(self, *words: str | Path) -> None:
        text = Path(words[-1]).read_text()
        self.seen.append(" ".join([*map(str, words[:-1]), text]))
        if self.fails and self.fails in str(words[0]):
            raise StepError("it does not start")


TEXT = "uv==1 \\\n    --hash=sha256:aa\nx==2 \\\n    --hash=sha256:bb\n"


@pytest.mark.parametrize("fails", ["", "uv"])
def test_all_is_installed_by_hashes(tmp_path: Path, fails: str) -> None:
    path, run = tmp_path / "lock.txt", Commands(fails)
    path.write_text(TEXT)
    lock.install(run, tmp_path, path)
    assert all("--require-hashes" in command for command in run.seen)
    assert run.seen[0].endswith("-r uv==1 \\\n    --hash=sha256:aa\n"), "uv comes first, alone"
    assert run.seen[-1].endswith(TEXT)
    assert len(run.seen) == 3 - (not fails)


def test_a_lock_without_hashes_installs_nothing(tmp_path: Path) -> None:
    path, run = tmp_path / "lock.txt", Commands()
    path.write_text("uv==1\nx==2\n")
    with pytest.raises(StepError, match="no hashes of uv"):
        lock.pinned(path.read_text(), "uv")
    (tmp_path / "uv").touch()
    lock.install(run, tmp_path, path)
    assert "--require-hashes" in run.seen[0], "uv refuses what has none"
