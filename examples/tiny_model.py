#!/usr/bin/env python3
"""Writes a tiny random Mixture-of-Experts model (Qwen3-MoE, float32), to try an engine with.

    python examples/tiny_model.py FOLDER

Needs torch and transformers and no network. It has no tokenizer: prompts and answers are token
ids, 3 to 511, and mean nothing. 2 layers, 16 experts, top-4; 15 MB.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

EXPERTS, TOPK, HIDDEN, LAYERS, VOCABULARY = 16, 4, 256, 2, 512


def make(folder: Path) -> None:
    """Writes it, the same numbers every time; the routers are random, too."""
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write it; made if it is not there")
    make(parser.parse_args().folder)
