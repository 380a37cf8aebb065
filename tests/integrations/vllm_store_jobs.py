"""Lives of one engine of vLLM with a block store. Jobs answer with plain values."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import vllm_model as tiny

from moewire.integrations import _engines, _plugin

CHUNK = 64
BLOCK = 32
LENGTHS = (700, 1150, 320, 333, 63, 64)
NEW_TOKENS = 8
SPEC = {
    "spec_name": "MoewireCPUOffloadingSpec",
    "spec_module_path": "moewire.integrations.vllm",
}


def make(_rank: int, _size: int, _folder: Path, model: str) -> None:
    """Writes the model, for longer texts than the example's."""
    tiny.make(Path(model))
    config = Path(model) / "config.json"
    values = json.loads(config.read_text())
    values["max_position_embeddings"] = 2048
    config.write_text(json.dumps(values))


def prompts(seed: int = 5) -> list[list[int]]:
    """Token ids, no prompt a prefix of another."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, tiny.VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]


def engine(model: str, tier: dict[str, Any] | None, **more: Any) -> Any:
    """With the tier; None: without a connector."""
    from vllm import LLM

    if tier is not None:
        extra = {**SPEC, "cpu_bytes_to_use": 64 << 20, "block_size": CHUNK}
        extra["secondary_tiers"] = [tier]
        more["kv_transfer_config"] = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra,
        }
    return LLM(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        block_size=BLOCK,
        kv_cache_memory_bytes=64 << 20,
        max_model_len=2048,
        max_num_seqs=4,
        max_num_batched_tokens=512,
        distributed_executor_backend="uni",
        disable_log_stats=True,
        **more,
    )


def life(
    _rank: int, _size: int, _folder: Path, model: str, tier: dict[str, Any] | None
) -> dict[str, Any]:
    """An engine from its beginning to its end: each prompt by itself, then the counts."""
    llm = engine(model, tier)
    answers = [text(llm, ids) for ids in prompts()]
    result: dict[str, Any] = {
        "ids": [one["ids"] for one in answers],
        "cached": [one["cached"] for one in answers],
        "seconds": [one["seconds"] for one in answers],
    }
    if tier is not None:
        result |= _of_tier(llm)
    log = _Log()
    logging.getLogger("vllm").addHandler(log)
    llm.llm_engine.engine_core.shutdown()
    return {**result, "said_at_the_end": log.lines}


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def tier_of(llm: Any) -> Any:
    """The engine's one secondary tier."""
    (tier,) = _manager(llm).secondary_tiers
    return tier


def _manager(llm: Any) -> Any:
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    return scheduler.connector.connector_scheduler.manager


def _of_tier(llm: Any) -> dict[str, Any]:
    """Once all that was to be stored is stored, or failed; a silent store leaves it open."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    manager, tier = _manager(llm), tier_of(llm)
    end = time.monotonic() + 30
    while scheduler.has_requests() or manager.has_pending_work():
        llm.llm_engine.step()
        if os.environ.get("MOEWIRE_TEST_STORE") == "silent":
            break
        assert time.monotonic() < end, "transfers do not end"
    return {
        "counts": asdict(tier._counts),
        "backlog": tier._transfers.backlog,
        "registered": getattr(tier._requests._client, "registered", None),  # of the stand-in
        "namespace": tier.namespace._asdict(),
        "active": _plugin.active(_engines.VLLM),
    }


def text(llm: Any, ids: list[int]) -> dict[str, Any]:
    from vllm import SamplingParams

    asked = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    began = time.monotonic()
    (output,) = llm.generate([{"prompt_token_ids": ids}], asked, use_tqdm=False)
    return {
        "ids": list(output.outputs[0].token_ids),
        "cached": output.num_cached_tokens,
        "seconds": time.monotonic() - began,
    }
