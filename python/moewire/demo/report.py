"""What the demo shows in the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .compare import Comparison
from .generate import Course, Text
from .traffic import Traffic

BOLD, DIM, GREEN, RED, CYAN = "1", "2", "1;32", "1;31", "36"
SHADES = " ░▒▓█"
BAR = 44


class Screen:
    """Prints on one rank, and nothing on the others."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._live = not silent and sys.stdout.isatty()
        self._color = self._live and "NO_COLOR" not in os.environ
        self._width = min(100, shutil.get_terminal_size((100, 24)).columns)

    def note(self, text: str = "") -> None:
        """One line."""
        if not self._silent:
            print(text, flush=True)

    def header(self, config: Any, num_ranks: int, num_prompts: int) -> None:
        """What is about to run."""
        experts, layers = config.num_experts, config.num_hidden_layers
        local = experts // num_ranks
        self.note()
        self.note(self._paint(BOLD, "Moewire demo"))
        self.note(
            f"A trained {config.model_type} model ({layers} layers, {experts} experts, "
            f"{config.num_experts_per_tok} per token, hidden size {config.hidden_size}), "
            f"loaded by transformers."
        )
        homes = ", ".join(
            f"{r * local}-{r * local + local - 1} on rank {r}" for r in range(num_ranks)
        )
        self.note(f"Experts {homes}." if num_ranks <= 4 else f"{local} experts on each rank.")
        self.note(
            f"{num_prompts} prompts, each rank its own. Weights and prompts stay; tokens move."
        )
        self.note()

    def progress(self, what: str) -> Callable[[int], None]:
        """A counter that is overwritten in place, on a terminal only."""

        def show(step: int) -> None:
            if self._live and step % 10 == 0:
                print(f"\r\x1b[K{what}: step {step} ", end="\r", flush=True)

        return show

    def title(self, text: str) -> None:
        """Starts a section."""
        self.note()
        self.note(
            self._paint(BOLD, text)
            + " "
            + self._paint(DIM, "─" * max(0, self._width - len(text) - 1))
        )

    def texts(self, together: Sequence[Text], alone: Sequence[Text], num_ranks: int) -> None:
        """Both runs' texts, one under the other."""
        self.title("Texts")
        for one, other in zip(together, alone, strict=True):
            same = one.tokens == other.tokens
            mark = self._paint(GREEN, "same") if same else self._paint(RED, "NOT the same")
            self.note(
                f"{self._paint(CYAN, one.prompt)}   "
                + self._paint(DIM, f"rank {one.number % num_ranks}, {len(one.tokens)} tokens, ")
                + mark
            )
            self._passage(f"{num_ranks} processes", one.generated)
            self._passage("1 process", other.generated)

    def _passage(self, label: str, text: str) -> None:
        lines = textwrap.wrap(" ".join(text.split()), self._width - 18) or [""]
        for index, line in enumerate(lines):
            self.note(f"  {label if index == 0 else '':12}  {line}")

    def times(self, courses: Sequence[Course], exchange: Sequence[float], alone: Course) -> None:
        """Steps per run, and how long they took."""
        together = courses[0]
        cores = len(os.sched_getaffinity(0))
        self.title("Time")
        self.note(f"{'':14} {'steps':>6} {'first step':>12} {'later steps':>17}")
        for name, course in ((f"{len(courses)} processes", together), ("1 process", alone)):
            self.note(
                f"{name:14} {course.num_steps:6} {1e3 * course.seconds_first:9.1f} ms "
                f"{course.ms_per_step:14.2f} ms"
            )
        self.note(
            f"Dispatch and combine take {min(exchange):.2f} to {max(exchange):.2f} ms per layer "
            f"and step, with waiting.\n{len(courses)} processes on {cores} cores: this shows that "
            f"they agree, not how fast many machines would be."
        )

    def rows(self, traffic: Traffic, courses: Sequence[Course], config: Any) -> None:
        """What should have been routed, and what the core counted."""
        self.title("Rows")
        per_token = config.num_experts_per_tok
        self.note(
            f"{'rank':>4} {'steps':>6} {'with T=0':>9} {'tokens':>7}   "
            f"{'× layers × experts':>18} {'the core sent':>14} {'received':>9} {'reduced':>8}"
        )
        for rank, (one, course) in enumerate(zip(traffic.ranks, courses, strict=True)):
            product = f"× {one.num_layers} × {per_token} = {one.num_routed}"
            self.note(
                f"{rank:4} {course.num_steps:6} {course.num_joined:9} {one.num_tokens:7}   "
                f"{product:>18} {one.sent:14} {one.received:9} {one.reduced:8}"
            )

    def matrix(self, traffic: Traffic) -> None:
        """From which rank to which."""
        self.title("Traffic: rows from (down) to (across)")
        most = max(map(max, traffic.matrix)) or 1
        block = 4 if traffic.num_ranks <= 6 else 1
        names = "".join(f"{f'rank {r}':>{9 + block}}" for r in range(traffic.num_ranks))
        self.note(" " * 8 + names)
        for rank, row in enumerate(traffic.matrix):
            cells = "".join(f"{value:8} {_shade(value, most) * block}" for value in row)
            self.note(f"  rank {rank} {cells}")

    def load(self, traffic: Traffic) -> None:
        """Rows per expert, all layers together, and the busiest expert of each layer."""
        self.title("Load: rows computed by each expert, all layers")
        sums = [sum(column) for column in zip(*traffic.load, strict=True)]
        local = len(sums) // traffic.num_ranks
        for expert, rows in enumerate(sums):
            bar = "█" * round(BAR * rows / max(1, *sums))
            owner = f"rank {expert // local}" if expert % local == 0 else ""
            self.note(f"  {owner:7} expert {expert:2} {rows:7} {bar}")
        skews = [max(layer) * len(layer) / max(1, sum(layer)) for layer in traffic.load]
        self.note(
            "Busiest expert of each layer: "
            + ", ".join(f"{skew:.1f}" for skew in skews)
            + " × the mean (a small model exaggerates this)."
        )

    def files(self, paths: Sequence[Path]) -> None:
        """Where the picture is."""
        self.note(f"Picture: {', '.join(map(str, paths))}")

    def comparison(self, found: Comparison, differences: Sequence[str]) -> int:
        """The last lines, and the exit status."""
        self.title("Result")
        if found.unequal_texts:
            self._bad(f"texts {found.unequal_texts} of {found.num_texts} differ from one process")
        else:
            self._good(
                f"{found.num_texts} texts, {found.num_tokens} tokens: equal, token for token"
            )
        self._logits(found)
        if differences:
            for difference in differences:
                self._bad(difference)
        else:
            self._good("the core's row counters equal steps × layers × routed rows, on every rank")
        return 0 if found.equal and not differences else 1

    def _logits(self, found: Comparison) -> None:
        if not found.unequal_logits:
            self._good("all logits equal to the last bit")
        elif found.bits_must_agree:
            self._bad(f"the logits of {found.unequal_logits} tokens differ from one process")
        else:
            self.note(
                f"  -    the logits of {found.unequal_logits} tokens differ in their last bits: "
                f"on this CPU torch's matrix products depend on the number of rows"
            )

    def _good(self, text: str) -> None:
        self.note(f"  {self._paint(GREEN, 'ok')}   {text}")

    def _bad(self, text: str) -> None:
        self.note(f"  {self._paint(RED, 'BAD')}  {text}")

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color else text


def _shade(value: int, most: int) -> str:
    return SHADES[min(len(SHADES) - 1, -(-value * (len(SHADES) - 1) // most))]
