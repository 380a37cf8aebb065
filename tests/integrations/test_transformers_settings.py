"""Settings and life of transformers' plug-in, in one process: no model is exchanged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import moewire.integrations.transformers as moe
from moewire import Buffer, InvalidArgument
from moewire.integrations import _buffers

TOO_MANY = 1 << 40


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(moe, "_settings", moe._Settings(512))
    yield
    moe.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_tokens": 0}, "max_tokens: 0 given; allowed: 1 to"),
        ({"max_tokens": 2.5}, "max_tokens: 2.5 of type float"),
        ({"max_tokens": "8"}, "max_tokens: '8' of type str"),
        ({"max_tokens": TOO_MANY}, f"max_tokens: {TOO_MANY} given"),
        ({"max_tokens": True}, "max_tokens: True of type bool"),
        ({"timeout_us": -7}, "timeout_us: -7 given; allowed: -1 to"),
        ({"max_tokens": 4, "timeout_us": "x"}, "timeout_us: 'x' of type str"),
    ],
)
def test_configure_refuses_and_changes_nothing(given: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        moe.configure(**given)  # type: ignore[arg-type]
    assert vars(moe._settings) == {"max_tokens": 512, "timeout_us": -1}
    moe.configure(timeout_us=5)
    assert vars(moe._settings) == {"max_tokens": 512, "timeout_us": 5}


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "²", str(TOO_MANY)])
def test_tokens_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MOEWIRE_TRANSFORMERS_MAX_TOKENS", text)
    with pytest.raises(InvalidArgument, match="MOEWIRE_TRANSFORMERS_MAX_TOKENS"):
        moe._tokens_from_environment()


def test_join_needs_a_layer_that_exchanges() -> None:
    """With ep_size forgotten there is none, and the others would wait for this rank."""
    model = torch.nn.Linear(2, 2)
    moe.gather_dense_weights(model)
    with pytest.raises(InvalidArgument, match=r"Linear has no layer .* ep_size"):
        moe.join(model)


def _layer(place: _buffers.Place) -> tuple[torch.nn.Module, moe.MoewireEP]:
    layer = moe.MoewireEP.__new__(moe.MoewireEP)
    layer.num_local_experts, layer.tp_mesh = 4, None
    layer.experts_forward = lambda rows, ids, weights: rows * 2
    model = torch.nn.Identity()
    layer._open(model, place)
    return model, layer


def _forward(layer: moe.MoewireEP) -> None:
    x = torch.ones((3, 64)).bfloat16()
    ids, weights = torch.zeros((3, 1), dtype=torch.int64), torch.ones((3, 1))
    with torch.no_grad():
        assert torch.equal(layer(x, ids, weights), x * 2)


def test_closing_makes_no_buffer() -> None:
    """A new one would wait for ranks that have closed, too."""
    model, layer = _layer(_buffers.InStore(dist.HashStore(), 0, 1))
    assert moe.buffers(model) == []
    _forward(layer)
    (buffer,) = moe.buffers(model)
    assert buffer.counters()["num_dispatches"] == 1
    moe.close()
    assert moe.buffers(model) == [] and _buffers.open_buffers() == []
    _forward(layer)
    assert len(moe.buffers(model)) == 1


def test_each_shape_meets_under_a_prefix_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh process makes only what is in use: its first is not the others' first."""
    prefixes: list[str] = []
    stock = Buffer.from_store

    def watched(*arguments: object, prefix: str, **options: object) -> Buffer:
        prefixes.append(prefix)
        return stock(*arguments, prefix=prefix, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Buffer, "from_store", watched)
    _, layer = _layer(_buffers.InStore(dist.HashStore(), 0, 1))
    for tokens in (4, 8, 4, 16):
        moe.configure(max_tokens=tokens)
        _forward(layer)
    assert len(prefixes) == len(set(prefixes)) == 3
    assert all("/cpu/" in prefix for prefix in prefixes), "on another device it is another one"


class _Experts(torch.nn.Module):
    """What ``shard_experts`` knows of experts, for any hidden size."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.num_experts = number
        self.down_proj = torch.nn.Parameter(torch.ones((number, 1, 1)))

    def forward(self, rows: torch.Tensor, ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return rows * 2


def _sharded(store: dist.Store, *numbers: int) -> tuple[torch.nn.Module, list[torch.nn.Module]]:
    layers = [torch.nn.Module() for _ in numbers]
    for layer, number in zip(layers, numbers, strict=True):
        layer.experts = _Experts(number)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(layers)
    moe.shard_experts(model, store, 0, 1)
    return model, [layer.experts for layer in layers]


def _run(experts: torch.nn.Module, hidden: int = 64) -> None:
    x = torch.ones((3, hidden)).bfloat16()
    with torch.no_grad():
        out = experts(x, torch.zeros((3, 1), dtype=torch.int64), torch.ones((3, 1)))
    assert torch.equal(out, x * 2)


def test_the_first_layer_makes_the_buffers_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order that ``buffers`` has: ranks that update them meet a fresh process so."""
    made: list[Buffer] = []
    stock = Buffer.from_store

    def watched(*arguments: object, prefix: str, **options: object) -> Buffer:
        made.append(stock(*arguments, prefix=prefix))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(Buffer, "from_store", watched)
    model, layers = _sharded(dist.HashStore(), 4, 8, 4, 2)
    assert moe.buffers(model) == []
    _run(layers[1])
    assert moe.buffers(model) == made and len(made) == 3
    for layer in layers:
        _run(layer)
    assert len(made) == 3
    moe.configure(max_tokens=16)
    _run(layers[0])
    assert moe.buffers(model) == made[3:] and len(made) == 6


def test_layers_of_two_hidden_sizes_are_refused() -> None:
    """A fresh process could not know both before it has reached both layers."""
    model, layers = _sharded(dist.HashStore(), 4, 8)
    _run(layers[0])
    with pytest.raises(InvalidArgument, match=r"32 wide.* one hidden size.* 64"):
        _run(layers[1], hidden=32)
    assert len(moe.buffers(model)) == 2
    _run(layers[1])


def test_a_missing_transformers_is_named() -> None:
    program = (
        "import sys; sys.modules['transformers.distributed.expert_parallel'] = None\n"
        "import moewire.integrations.transformers"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.returncode == 1
    assert "needs transformers 5.23.0" in found.stderr and "pip install" in found.stderr
