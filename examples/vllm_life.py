#!/usr/bin/env python3
"""One life of an engine of vLLM on the CPU: it answers one long prompt, and ends.

    python examples/vllm_life.py ANSWER --model FOLDER [--text FILE] [--tier JSON]

Writes to the file ANSWER what examples/store_restart.py compares: token ids, how many of the
prompt's tokens came from a cache, and the seconds to the first token. ``--tier`` is the block
store's entry in vLLM's ``secondary_tiers``; without it vLLM has no connector.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_HOST_IP="127.0.0.1",
    GLOO_SOCKET_IFNAME="lo",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine runs in this process
)
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

_PAUSE = 0.001  # seconds; a step without an answer may be one that waits for blocks
MEMORY = 128 << 20  # bytes of vLLM's KV cache, and of the tier in memory


def step(num_tokens: int, chunk: int) -> int:
    """The tokens that vLLM computes at a time: so many that steps end where the last block ends.

    Then all lives compute the rest of the prompt in the same step of the same shape. In bf16 the
    shape decides how sums are rounded, and so, now and then, which token is the most likely one.
    """
    num_chunks = max(1, num_tokens // chunk)
    return max(n for n in range(1, num_chunks + 1) if num_chunks % n == 0 and n <= 32) * chunk


def engine(options: argparse.Namespace) -> Any:
    """vLLM with the block store, or without a connector."""
    from vllm import LLM

    more = {}
    if options.tier is not None:
        more["kv_transfer_config"] = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "spec_name": "MoewireCPUOffloadingSpec",
                "spec_module_path": "moewire.integrations.vllm",
                "cpu_bytes_to_use": MEMORY,
                "block_size": options.chunk,
                "secondary_tiers": [options.tier],
            },
        }
    return LLM(
        model=options.model,
        skip_tokenizer_init=not options.text,
        dtype="bfloat16",
        enforce_eager=True,
        block_size=32,
        kv_cache_memory_bytes=MEMORY,
        max_model_len=options.prompt_tokens + options.new_tokens,
        max_num_seqs=2,
        max_num_batched_tokens=step(options.prompt_tokens, options.chunk),
        distributed_executor_backend="uni",
        disable_log_stats=True,
        **more,
    )


def answer(llm: Any, ids: list[int], num_tokens: int) -> dict[str, Any]:
    """The most likely continuation of a prompt, token by token."""
    from vllm import SamplingParams

    asked = SamplingParams(
        temperature=0,
        max_tokens=num_tokens,
        ignore_eos=True,
        detokenize=llm.llm_engine.tokenizer is not None,
    )
    began = time.monotonic()
    llm.llm_engine.add_request("0", {"prompt_token_ids": ids}, asked)
    first, last = None, None
    while llm.llm_engine.has_unfinished_requests():
        outputs = llm.llm_engine.step()
        for last in outputs:
            if first is None and last.outputs[0].token_ids:
                first = time.monotonic() - began
        if not outputs:
            time.sleep(_PAUSE)
    assert last is not None and last.finished
    return {
        "ids": list(last.outputs[0].token_ids),
        "text": last.outputs[0].text,
        "cached": last.num_cached_tokens,
        "first": first,
        "prompt": len(ids),
    }


def prompt(llm: Any, text: Path | None, num_tokens: int) -> list[int]:
    """The first tokens of the file, or random ones."""
    if text is None:
        vocabulary = llm.llm_engine.model_config.get_vocab_size()
        return random.Random(5).choices(range(3, vocabulary), k=num_tokens)
    ids: list[int] = llm.get_tokenizer().encode(text.read_text())[:num_tokens]
    if len(ids) < num_tokens:
        raise SystemExit(f"--text: {len(ids)} tokens given; needed: {num_tokens}")
    return ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("answer", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tier", type=json.loads)
    parser.add_argument("--chunk", type=int, default=64, help="tokens of a block of the store")
    parser.add_argument("--prompt-tokens", type=int, default=3000)
    parser.add_argument("--new-tokens", type=int, default=32)
    options = parser.parse_args()
    llm = engine(options)
    ids = prompt(llm, options.text, options.prompt_tokens)
    answer(llm, ids[-options.chunk + 1 :], 2)  # warms up; too short for a block
    found = answer(llm, ids, options.new_tokens)
    llm.llm_engine.engine_core.shutdown()  # what is on its way to the store gets there
    options.answer.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
