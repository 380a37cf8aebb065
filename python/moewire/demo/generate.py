"""Generation with sampling, on one rank's prompts. The same code on one process as on many."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import torch

ENDS = b".?!"  # of a sentence
SHORTEST = 60  # bytes before a sentence may end a text


class Special(NamedTuple):
    """Token ids beside the 256 bytes."""

    begin: int
    end: int
    pad: int


class Text:
    """One prompt and what has been generated for it."""

    def __init__(self, number: int, prompt: str, options: argparse.Namespace) -> None:
        self.number = number
        self.prompt = prompt
        self.tokens: list[int] = []
        self.logits: list[torch.Tensor] = []  # what each token was drawn from
        self.done = False
        self._most = options.tokens
        self._temperature = options.temperature
        # Its own generator: a text does not depend on the other texts.
        self._generator = torch.Generator().manual_seed(options.seed * 1000 + number)

    @property
    def generated(self) -> str:
        """The bytes so far, as text."""
        return bytes(token for token in self.tokens if token < 256).decode(errors="replace")

    def add(self, logits: torch.Tensor, special: Special) -> int:
        """Draws the next token from [V] logits; the id to feed next."""
        if self.done:
            return special.pad
        self.logits.append(logits.clone())
        token = self._draw(logits)
        self.tokens.append(token)
        sentence_ended = len(self.tokens) >= SHORTEST and token in ENDS
        self.done = token == special.end or sentence_ended or len(self.tokens) >= self._most
        return token

    def _draw(self, logits: torch.Tensor) -> int:
        if self._temperature == 0:
            return int(logits.argmax())
        chances = torch.softmax(logits.float() / self._temperature, dim=-1)
        return int(torch.multinomial(chances, 1, generator=self._generator))


class Batch:
    """One rank's texts, generated together: prompts padded on the left, one forward per step."""

    def __init__(self, texts: list[Text], special: Special) -> None:
        self.texts = texts
        self.num_routed = 0  # tokens that went through the model, padding included
        self._special = special
        self._cache: Any = None
        prompts = [[special.begin, *text.prompt.encode()] for text in texts]
        longest = max(map(len, prompts), default=0)
        padding = [longest - len(prompt) for prompt in prompts]
        rows = [[special.pad] * n + prompt for n, prompt in zip(padding, prompts, strict=True)]
        self._next = torch.tensor(rows, dtype=torch.int64)
        self._mask = torch.tensor([[0] * n + [1] * (longest - n) for n in padding])

    @property
    def done(self) -> bool:
        """Whether every text has ended."""
        return all(text.done for text in self.texts)

    def step(self, model: torch.nn.Module) -> None:
        """One forward; each text that has not ended gets one more token."""
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)[:, -self._next.shape[1] :]
        output = model(
            input_ids=self._next,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        self.num_routed += self._next.numel()
        self._cache = output.past_key_values
        rows = zip(self.texts, output.logits[:, -1], strict=True)
        self._next = torch.tensor([[text.add(logits, self._special)] for text, logits in rows])
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(self.texts), 1))], dim=1)


class Course(NamedTuple):
    """How long a run took."""

    num_steps: int
    num_joined: int  # steps in which this rank had no tokens of its own
    seconds_first: float  # the step with the prompts
    seconds_rest: float

    @property
    def ms_per_step(self) -> float:
        """Mean over the steps after the first."""
        return 1e3 * self.seconds_rest / max(1, self.num_steps - 1)


def run_alone(
    model: torch.nn.Module, batches: list[Batch], report: Callable[[int], None]
) -> Course:
    """One process: every batch in turn, in every step."""

    def step() -> bool:
        for batch in batches:
            if not batch.done:
                batch.step(model)
        return all(batch.done for batch in batches)

    return _run(step, lambda: 0, report)


def run_together(
    model: torch.nn.Module,
    batch: Batch,
    join: Callable[[], None],
    all_done: Callable[[bool], bool],
    report: Callable[[int], None],
) -> Course:
    """One rank of many: its own batch, and, when that has ended, the others' with T = 0."""
    joined = 0

    def step() -> bool:
        nonlocal joined
        if batch.done:
            join()
            joined += 1
        else:
            batch.step(model)
        return all_done(batch.done)

    return _run(step, lambda: joined, report)


def _run(
    step: Callable[[], bool], joined: Callable[[], int], report: Callable[[int], None]
) -> Course:
    begin = perf_counter()
    done = step()
    first = perf_counter()
    steps = 1
    while not done:
        report(steps)
        done = step()
        steps += 1
    return Course(steps, joined(), first - begin, perf_counter() - first)
