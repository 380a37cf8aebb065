"""The options of the demo, and their defaults."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

MODEL = Path(__file__).parent / "model"

# In the manner of the two sources that the model was trained on. Lengths differ on purpose.
PROMPTS = [
    "And it came to pass",
    "The king answered and said unto him,",
    "In the beginning",
    "Blessed is the man",
    "The statement",
    "Then spake the prophet unto the children of Israel, saying,",
    "A class definition is",
    "Behold,",
]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of ``moewire demo`` and of ``examples/generate.py``."""
    parser = argparse.ArgumentParser(
        prog="moewire demo",
        description="Generates text with a small trained mixture-of-experts model. Its experts "
        "are spread over several processes, which exchange tokens through Moewire; then one "
        "process does the same alone, and the texts are compared.",
        epilog="Under torchrun, the processes are torchrun's and --ranks is not used.",
    )
    parser.add_argument("--ranks", type=int, default=4, help="processes (default 4)")
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="start of a text; may be repeated"
    )
    parser.add_argument("--tokens", type=int, default=160, help="at most, per text (default 160)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0: the likeliest byte")
    parser.add_argument("--seed", type=int, default=1, help="of the sampling (default 1)")
    parser.add_argument("--model", type=Path, default=MODEL, help="folder; a byte-level MoE model")
    parser.add_argument(
        "--picture",
        type=Path,
        default=Path("moewire-demo.svg"),
        help="where the traffic is drawn, as .svg, and as .png if matplotlib is installed",
    )
    options = parser.parse_args(argv)
    _check(parser, options)
    options.prompt = options.prompt or PROMPTS
    return options


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.tokens < 1:
        parser.error("--tokens: 1 or more")
    if options.temperature < 0:
        parser.error("--temperature: 0 or more")
    if not (options.model / "config.json").is_file():
        parser.error(f"--model: no config.json in {options.model}")
    wrong = _wrong_ranks(options, int(os.environ.get("WORLD_SIZE", options.ranks)))
    if wrong:
        parser.error(wrong)


def _wrong_ranks(options: argparse.Namespace, ranks: int) -> str:
    """Why the model's experts cannot be spread over so many processes; empty: they can."""
    experts = json.loads((options.model / "config.json").read_text())["num_local_experts"]
    allowed = [n for n in range(2, experts + 1) if experts % n == 0]
    if ranks in allowed:
        return ""
    return f"--ranks: {ranks}; {experts} experts can be spread over {allowed} processes"
