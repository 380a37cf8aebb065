"""Tests that lack something skip, and say so; where that is required they fail."""

from __future__ import annotations

import pytest

from harness import required


@pytest.mark.parametrize(
    ("asked", "fails"), [("", False), ("cuda", False), ("cuda,rdma", True), ("all", True)]
)
def test_what_is_required(monkeypatch: pytest.MonkeyPatch, asked: str, fails: bool) -> None:
    monkeypatch.setenv("MOEWIRE_REQUIRE", asked)
    outcome = pytest.fail.Exception if fails else pytest.skip.Exception
    with pytest.raises(outcome, match="no device"):
        required.lacking("rdma", "no device")
