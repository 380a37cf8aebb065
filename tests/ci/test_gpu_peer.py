"""A peer's kernels beside ours: it is there, it is not, and every way in which it can fail."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".ci"))

import gpu
import gpu_build
import gpu_report
from gpu_run import FINE, Row, Run

# The API that is timed, on the CPU: every selection is a row of its expert, in order of token.
PEER = """
import time
import torch

class Buffer:
    @staticmethod
    def get_low_latency_rdma_size_hint(tokens, hidden, ranks, experts):
        return tokens * hidden * ranks * experts

    def __init__(self, group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False,
                 num_qps_per_rank=1):
        assert group.size() == 1 and num_rdma_bytes and low_latency_mode

    def low_latency_dispatch(self, x, topk_idx, max_tokens, experts, use_fp8=True,
                             async_finish=False, return_recv_hook=False):
        y = torch.zeros((experts, max_tokens, x.shape[1]), dtype=x.dtype)
        counts = torch.zeros(experts, dtype=torch.int32)
        for token, ids in enumerate(topk_idx.tolist()):
            for e in ids:
                y[e, counts[e]] = x[token]
                counts[e] += 1
        time.sleep(0.002)
        return ((y, None) if use_fp8 else y), counts, topk_idx, None, None

    def low_latency_combine(self, y, topk_idx, weights, handle, async_finish=False):
        counts = [0] * y.shape[0]
        out = torch.zeros((len(topk_idx), y.shape[2]))
        for token, ids in enumerate(topk_idx.tolist()):
            for k, e in enumerate(ids):
                out[token] += weights[token, k] * y[e, counts[e]].float()
                counts[e] += 1
        return out.to(y.dtype) * SCALE, None, None
"""
SMALL = ["--on", "cpu", "--tokens", "4", "--hidden", "128", "--topk", "2", "--experts", "4"]


def row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, *more: str) -> Row:
    """What becomes of a peer with this text; without one, of none."""
    monkeypatch.setattr(gpu_build, "PLACE", tmp_path)
    monkeypatch.delenv("MOEWIRE_PEER", raising=False)
    if text is not None:
        (tmp_path / "deep_ep").mkdir()
        (tmp_path / "deep_ep" / "__init__.py").write_text(text)
        monkeypatch.setenv("MOEWIRE_PEER", str(tmp_path))
    return Run(120, dict(os.environ), tmp_path / "log").row(gpu.peer(*SMALL, *more))


@pytest.mark.all
@pytest.mark.parametrize("fp8", [False, True])
def test_its_times_stand_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fp8: bool
) -> None:
    found = row(tmp_path, monkeypatch, f"SCALE = 1\n{PEER}", *(["--fp8"] if fp8 else []))
    assert found.outcome == "passed", found.said
    assert 2000 <= found.result["peer_us"]["dispatch"] < 1e6
    ours = {**found.result, "what": "moewire", "dispatch_us": 1.25, "combine_us": 2.5}
    del ours["peer_us"]
    other = {**ours, "what": "of eight ranks", "ranks": 8}
    lines = gpu_report.peer_table([found.result, other, ours])
    kind = "fp8" if fp8 else "bf16"
    assert lines[2].startswith("| DeepEP of no version, commit unknown | 1 | 4 | 128 | 2 | 4 |")
    assert lines[3] == f"| moewire | 1 | 4 | 128 | 2 | 4 | {kind} | 1.2 | 2.5 | no |"
    assert "of eight ranks" not in "\n".join(lines)


def test_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row says so, and the report, too."""
    found = row(tmp_path, monkeypatch, None)
    assert found.outcome == "not there" and "MOEWIRE_PEER" in found.said
    text = gpu_report.table("title", {}, [found])
    assert "| peer | not there |" in text and "no kernel of others was timed" in text
    monkeypatch.setenv("MOEWIRE_PEER", str(tmp_path))
    assert "has no folder deep_ep" in gpu.peer().lacks


@pytest.mark.all
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import there_is_no_such_module", "there_is_no_such_module"),
        ("import os; os.abort()", "Abort"),
        (f"SCALE = 2\n{PEER}", "sums are wrong"),
    ],
)
def test_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    found = row(tmp_path, monkeypatch, text)
    assert found.outcome == "failed" and found.outcome not in FINE
    assert said in found.said


@pytest.mark.all
def test_it_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PEER_SECONDS", 6)
    found = row(tmp_path, monkeypatch, "import time; time.sleep(3600)")
    assert found.outcome == "out of time" and found.outcome not in FINE
    assert found.seconds < 30
