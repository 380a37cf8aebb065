"""Five architectures, tiny and random, and how to load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.distributed import DistributedConfig

SEED = 20251
EXPERTS, TOPK, HIDDEN, LAYERS, VOCABULARY = 16, 4, 128, 2, 264

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
    "num_experts_per_tok": TOPK,
}


def _config(name: str) -> Any:
    if name in ("mixtral", "mixtral_half"):
        experts = EXPERTS if name == "mixtral" else EXPERTS // 2
        return transformers.MixtralConfig(
            **_COMMON, intermediate_size=64, num_local_experts=experts
        )
    if name == "qwen3_moe":
        return transformers.Qwen3MoeConfig(
            **_COMMON,
            head_dim=32,
            intermediate_size=128,
            moe_intermediate_size=64,
            num_experts=EXPERTS,
        )
    if name == "olmoe":
        return transformers.OlmoeConfig(**_COMMON, intermediate_size=64, num_experts=EXPERTS)
    if name == "gpt_oss":
        return transformers.GptOssConfig(
            **_COMMON,
            head_dim=32,
            intermediate_size=64,
            num_local_experts=EXPERTS,
            sliding_window=64,
            layer_types=["sliding_attention", "full_attention"],
        )
    return transformers.DeepseekV3Config(
        **{**_COMMON, "num_key_value_heads": 4, "num_hidden_layers": LAYERS + 1},
        intermediate_size=128,
        moe_intermediate_size=64,
        n_routed_experts=EXPERTS,
        n_group=4,
        topk_group=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        kv_lora_rank=32,
        q_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=32,
    )


def make(name: str, folder: Path) -> None:
    """Every parameter random, the routers', too, which would be all zero."""
    torch.manual_seed(SEED)
    model = transformers.AutoModelForCausalLM.from_config(_config(name))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" not in key:
                parameter.normal_(0, 1.0 if "embed" in key else 0.08)
        for key, buffer in model.named_buffers():
            if "e_score" in key:
                buffer.normal_(0, 0.05)
    model.to(torch.bfloat16).save_pretrained(folder / name)


def load(folder: Path, ranks: int, implementation: str, experts: str = "batched_mm") -> Any:
    """``ranks`` 1: all of it in this process. batched_mm computes each row by itself, so that
    its bits do not depend on the rows of others.
    """
    distributed = DistributedConfig(
        fsdp_size=ranks, ep_size=ranks, ep_implementation=implementation
    )
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.bfloat16,
        experts_implementation=experts,
        distributed_config=distributed if ranks > 1 else None,
    ).eval()


def prompt(rank: int, num_tokens: int, batch: int = 2) -> torch.Tensor:
    """Token ids of one rank."""
    generator = torch.Generator().manual_seed(SEED + 1000 * rank + num_tokens)
    return torch.randint(0, 256, (batch, num_tokens), generator=generator)
