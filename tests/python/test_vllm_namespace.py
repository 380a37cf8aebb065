"""Which engines of vLLM share blocks: those that agree in every field. Without vLLM."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.block_server import Served
from harness.fake_store import Folder, Hand
from moewire.errors import InvalidArgument
from moewire.integrations.vllm.offload import _engine, _weights
from moewire.integrations.vllm.offload._namespace import Identity, of_engine
from moewire.store import Namespace

IDENTITY = Identity("model", "weights", "machine", "salt")
ROW = 4096


def config() -> Any:
    """As vLLM's OffloadingConfig."""
    return SimpleNamespace(
        model=SimpleNamespace(name="m", dtype="bfloat16"),
        cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=4),
        parallel=SimpleNamespace(
            rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1
        ),
        groups=[SimpleNamespace(group_id=0, layer_names=("a", "b"), tokens_per_block=16)],
        worker_kv_bytes_per_block=1024,
        kv_cache_layout="LBHNC",
        canonical_layout=False,
        replicated_layout=False,
    )


CHANGES: dict[str, Any] = {
    "model.dtype": "float16",
    "cache.tokens_per_hash": 32,
    "cache.blocks_per_chunk": 8,
    "parallel.rank": 1,
    "parallel.world_size": 2,
    "parallel.tp_size": 2,
    "parallel.pp_size": 2,
    "parallel.pcp_size": 2,
    "parallel.dcp_size": 2,
    "groups.0.group_id": 1,
    "groups.0.layer_names": ("a", "c"),
    "groups.0.tokens_per_block": 32,
    "worker_kv_bytes_per_block": 2048,
    "kv_cache_layout": "BLHNC",
    "canonical_layout": True,
    "replicated_layout": True,
}


def set_field(target: Any, path: str, value: Any) -> None:
    *way, name = path.split(".")
    for step in way:
        target = target[int(step)] if step.isdigit() else getattr(target, step)
    assert getattr(target, name) != value
    setattr(target, name, value)


def others() -> dict[str, Namespace]:
    """The namespaces that differ from the first in one field."""
    found = {}
    for path, value in CHANGES.items():
        changed = config()
        set_field(changed, path, value)
        found[path] = of_engine(changed, ROW, IDENTITY)
    for field in Identity._fields:
        found[field] = of_engine(config(), ROW, IDENTITY._replace(**{field: "another"}))
    found["row_bytes"] = of_engine(config(), 2 * ROW, IDENTITY)
    return found


def exists(client: Hand) -> bool:
    client.submit_exists([b"key"])
    client.answer()
    return client.drain()[0].ok == [True]


@pytest.mark.parametrize("field", [*CHANGES, *Identity._fields, "row_bytes"])
def test_engines_that_differ_in_a_field_share_nothing(field: str, tmp_path: Path) -> None:
    first = of_engine(config(), ROW, IDENTITY)
    writer, other, again = (Hand(Folder(tmp_path, one)) for one in (first, others()[field], first))
    writer.submit_put([b"key"], [memoryview(b"value")])
    writer.answer()
    assert exists(again) and not exists(other)


def test_a_real_store_keeps_all_of_them_apart(tmp_path: Path) -> None:
    """Each has a block of its own under the one key, and sees no other."""
    with Served(tmp_path) as server:
        for name, namespace in {"": of_engine(config(), ROW, IDENTITY), **others()}.items():
            with server.client(namespace) as client:
                assert client.exists([b"key"]) == [False], name
                assert client.put(b"key", name.encode() or b"first")
        with server.client(of_engine(config(), ROW, IDENTITY)) as client:
            assert client.get(b"key") == b"first"


def test_no_two_of_them_are_one() -> None:
    found = [of_engine(config(), ROW, IDENTITY), *others().values()]
    assert len(set(found)) == len(found) == len(CHANGES) + len(Identity._fields) + 2


def test_fields_are_texts_of_which_none_can_run_into_another() -> None:
    one = of_engine(config(), ROW, IDENTITY)
    assert all(isinstance(field, str) for field in one)
    assert json.loads(one.parallel)["rank"] == 0 and json.loads(one.chunk)["tokens_per_hash"] == 16


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "a.safetensors").write_bytes(bytes(range(256)) * 16)
    (folder / "b.safetensors").write_bytes(b"b" * (9 << 20))
    return folder


def test_weights_are_those_of_the_files(model: Path, tmp_path: Path) -> None:
    before = _weights.of_files(model)
    assert before == _weights.of_files(model)
    (model / "tokenizer.json").write_text("another")
    (model / "README.md").write_text("another")
    assert _weights.of_files(model) == before
    moved = model.rename(tmp_path / "moved")
    assert _weights.of_files(moved) == before


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"[]"),
        ("a.safetensors", bytes(range(256)) * 15 + bytes(255) + b"x"),
        ("b.safetensors", b"b" * ((9 << 20) - 1) + b"x"),
        ("b.safetensors", b"b" * ((9 << 20) + 1)),
        ("c.safetensors", b"b"),
    ],
)
def test_another_file_is_another_fingerprint(model: Path, file: str, content: bytes) -> None:
    before = _weights.of_files(model)
    (model / file).write_bytes(content)
    assert _weights.of_files(model) != before


def test_a_name_and_a_border_count(model: Path) -> None:
    before = _weights.of_files(model)
    (model / "a.safetensors").rename(model / "aa.safetensors")
    assert _weights.of_files(model) != before


@pytest.mark.parametrize("begin", [1, 5000, 1 << 20, 3_333_333, (9 << 20) - 9000])
def test_one_changed_tensor_in_the_middle_is_noticed(
    model: Path, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a fine-tune that leaves the first and the last tensors as they were."""
    monkeypatch.setattr(_weights, "_SAMPLES", 1000)  # of 4 KiB, every 9 KiB
    before = _weights.of_files(model)
    with (model / "b.safetensors").open("r+b") as file:
        file.seek(begin)
        file.write(b"x" * 10_000)
    assert _weights.of_files(model) != before


def test_large_files_are_sampled(tmp_path: Path) -> None:
    file = tmp_path / "large.gguf"
    with file.open("wb") as large:
        large.truncate(1 << 40)
    taken = list(_weights._samples(file, 1 << 40, (1 << 40) // 4096))
    assert 4096 <= len(taken) <= 4098 and all(len(one) == 4096 for one in taken)
    assert _weights.of_files(file) != ""


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidArgument, match="no weights"):
        _weights.of_files(tmp_path)


def engine(model: Path, **changes: Any) -> Any:
    """As vLLM's VllmConfig."""
    one = SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(model),
            revision=None,
            dtype="float32",
            quantization=None,
            seed=0,
            hf_config=SimpleNamespace(to_dict=lambda: {"rope": 1, "_name_or_path": str(model)}),
        ),
        load_config=SimpleNamespace(load_format="auto", download_dir=None),
        speculative_config=None,
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={"cpu_bytes_to_use": 1}),
    )
    for path, value in changes.items():
        set_field(one, path.replace("__", "."), value)
    return one


@pytest.mark.parametrize(
    "change",
    [
        {"model_config__dtype": "float16"},
        {"model_config__quantization": "fp8"},
        {"load_config__load_format": "dummy"},
        {"model_config__hf_config": SimpleNamespace(to_dict=lambda: {"rope": 2})},
    ],
)
def test_settings_of_the_model_count(model: Path, change: dict[str, Any]) -> None:
    assert _engine.weights(engine(model, **change), None) != _engine.weights(engine(model), None)
    assert _engine.weights(engine(model, **change), "w") != _engine.weights(engine(model), "w")


def test_weights_that_are_named_stand_for_the_files(model: Path, tmp_path: Path) -> None:
    nowhere = engine(tmp_path / "none")
    assert _engine.weights(nowhere, "w") == _engine.weights(engine(model), "w")
    assert _engine.weights(nowhere, "w") != _engine.weights(nowhere, "v")
    with pytest.raises(InvalidArgument, match=r'not on this machine.*"weights"'):
        _engine.weights(nowhere, None)


def test_random_weights_count_by_their_seed(model: Path) -> None:
    found = [
        _engine.weights(engine(model, load_config__load_format=how, **seed), None)
        for how in ("dummy", "other")
        for seed in ({}, {"model_config__seed": 1})
    ]
    assert found[0] != found[1] and found[2] == found[3]


def test_a_draft_model_counts(model: Path, tmp_path: Path) -> None:
    draft = SimpleNamespace(draft_model_config=engine(model).model_config)
    with_draft = engine(model, speculative_config=draft)
    before = _engine.weights(with_draft, None)
    assert before != _engine.weights(engine(model), None)
    other = tmp_path / "draft"
    other.mkdir()
    (other / "x.safetensors").write_bytes(b"x")
    draft.draft_model_config.model = str(other)
    assert _engine.weights(with_draft, None) != before


def test_the_engine_is_found_by_the_very_object_it_gave(model: Path) -> None:
    config, other = engine(model), engine(model)

    def tier(extra: Any) -> Any:
        return _engine.found(extra)

    def connector(vllm_config: Any, extra: Any) -> Any:
        return tier(extra)

    def outer(vllm_config: Any) -> Any:
        return connector(other, vllm_config.kv_transfer_config.kv_connector_extra_config)

    assert outer(config) is config
    assert connector(config, {"cpu_bytes_to_use": 1}) is None
    assert connector(None, {}) is None


def test_looking_for_the_engine_keeps_nothing_alive() -> None:
    class Large:
        pass

    large = Large()
    gone = weakref.ref(large)
    assert _engine.found({}) is None
    del large
    assert gone() is None
