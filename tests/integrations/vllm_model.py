"""A tiny random Qwen3-MoE, and prompts for it."""

from __future__ import annotations

from pathlib import Path

import torch

EXPERTS, TOPK, HIDDEN, LAYERS, VOCABULARY = 16, 4, 256, 2, 512
LENGTHS = (3, 9, 17, 30, 5, 12)  # of the prompts
NEW_TOKENS = (24, 16) * 3  # of the texts: the second of two ranks is done before the first


def make(folder: Path) -> None:
    """Writes it, in float32; every parameter random, the routers', too."""
    import transformers

    config = transformers.Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=256,
        moe_intermediate_size=128,
        num_experts=EXPERTS,
        num_experts_per_tok=TOPK,
        norm_topk_prob=True,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(7)
    model = transformers.Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0, 1.0 if "embed" in name else 0.08)
    model.float().save_pretrained(folder)


def prompts(rank: int, size: int) -> list[list[int]]:
    """Token ids of the prompts that a rank answers: every ``size``-th."""
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]
    return texts[rank::size]
