#!/usr/bin/env python3
"""vLLM on the CPU, its experts on two data-parallel ranks, Moewire between them.

    MOEWIRE_VLLM=1 python examples/vllm_two_ranks.py FOLDER_OF_A_MODEL

Prompts and answers are token ids, so the model needs no tokenizer. Without ``MOEWIRE_VLLM``
the ranks end in NotImplementedError: vLLM 0.32.0 by itself has no expert parallelism on the CPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(
    VLLM_CPU_OMP_THREADS_BIND="nobind",  # two ranks share the cores
    VLLM_HOST_IP="127.0.0.1",
    GLOO_SOCKET_IFNAME="lo",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine runs in the rank's own process
    VLLM_LOGGING_LEVEL="ERROR",
)

PROMPTS = [[3, 17, 4], [90, 5], [41, 41, 8, 12], [7]]


def rank(number: int, size: int, port: int, model: str, answers: Any) -> None:
    """Every ``size``-th prompt. A rank that is done serves the others' tokens."""
    import vllm

    import moewire.integrations.vllm as plugin

    os.environ.update(
        VLLM_DP_RANK=str(number),
        VLLM_DP_RANK_LOCAL=str(number),
        VLLM_DP_SIZE=str(size),
        VLLM_DP_MASTER_IP="127.0.0.1",
        VLLM_DP_MASTER_PORT=str(port),
    )
    engine = vllm.LLM(
        model=model,
        dtype="float32",
        enable_expert_parallel=True,
        skip_tokenizer_init=True,
        kv_cache_memory_bytes=64 << 20,
        max_model_len=64,
        max_num_batched_tokens=64,
        enforce_eager=True,
        distributed_executor_backend="uni",
    )
    asked = vllm.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    texts = [{"prompt_token_ids": ids} for ids in PROMPTS[number::size]]
    found = [list(one.outputs[0].token_ids) for one in engine.generate(texts, asked)]
    calls = sum(buffer.counters()["num_dispatches"] for buffer in plugin.buffers())
    answers.put((number, found, calls))
    plugin.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a folder with a Mixture-of-Experts model")
    model = parser.parse_args().model
    import vllm  # noqa: F401  # once, before the ranks are forked

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context: Any = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    size = 2
    ranks = [
        context.Process(target=rank, args=(number, size, port, model, answers))
        for number in range(size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit("a rank failed")
    for number, found, calls in sorted(answers.get() for _ in ranks):
        for prompt, text in zip(PROMPTS[number::size], found, strict=True):
            print(f"rank {number}: {prompt} -> {text}")
        print(f"rank {number}: {calls} dispatches through Moewire")


if __name__ == "__main__":
    main()
