"""Random cases. Every rank makes all ranks' inputs from the seed, so nothing is exchanged."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from . import oracle

ROUTINGS = ("uniform", "skewed", "one expert", "nothing", "duplicates", "holes")


@dataclass
class Case:
    """Inputs of one dispatch and combine on all ranks."""

    num_ranks: int
    num_experts: int
    num_topk: int
    hidden: int
    num_max: int
    fp8: bool
    routing: str
    salt: tuple[int, ...]
    wild: bool = False
    round_scale: bool = False
    ue8m0: bool = False
    fp32_outputs: bool = False
    pre_reduce: tuple[bool, ...] = ()  # by rank; empty: no rank
    x: list[np.ndarray] = field(default_factory=list)  # bf16 [T, H] by rank
    topk: list[np.ndarray] = field(default_factory=list)  # int64 [T, K]
    weights: list[np.ndarray] = field(default_factory=list)  # float32 [T, K]

    @property
    def num_local(self) -> int:
        return self.num_experts // self.num_ranks

    def random(self, *salt: int) -> np.random.Generator:
        return np.random.default_rng([*self.salt, *salt])

    def output(self, expert: int, source: int) -> np.ndarray:
        """bf16 or float32 [T, H]: what an expert answers to each token of a source, by no rule."""
        numbers = _fp32_numbers if self.fp32_outputs else _numbers
        return numbers(self.random(7, expert, source), self.x[source].shape, self.wild)

    def outputs_for(self, source: int) -> dict[int, np.ndarray]:
        chosen = set(self.topk[source].reshape(-1).tolist()) - {-1}
        return {expert: self.output(expert, source) for expert in chosen}

    def combined(self, source: int, topk: np.ndarray, weights: np.ndarray) -> np.ndarray:
        outputs = self.outputs_for(source)
        if self.asks(source):
            return oracle.combine_by_rank(topk, weights, outputs, self.hidden, self.num_local)
        return oracle.combine(topk, weights, outputs, self.hidden)

    def asks(self, source: int) -> bool:
        """Whether a rank's combine is pre-reduced."""
        return bool(self.pre_reduce) and self.pre_reduce[source]

    def __str__(self) -> str:
        tokens = [len(x) for x in self.x]
        kind = "fp8" if self.fp8 else "bf16"
        kind += " ue8m0" if self.ue8m0 else " round_scale" if self.round_scale else ""
        kind += " fp32_outputs" if self.fp32_outputs else ""
        kind += f" pre_reduce={[int(asks) for asks in self.pre_reduce]}" if self.pre_reduce else ""
        return (
            f"case {self.salt}: R={self.num_ranks} E={self.num_experts} K={self.num_topk} "
            f"H={self.hidden} M={self.num_max} T={tokens} {kind} {self.routing!r} wild={self.wild}"
        )


def _numbers(random: np.random.Generator, shape: tuple[int, ...], wild: bool) -> np.ndarray:
    """bf16: bell-shaped, or every bit pattern (NaN, infinities, subnormals)."""
    if wild:
        return random.integers(0, 1 << 16, size=shape, dtype=np.uint16)
    return oracle.to_bf16(random.standard_normal(shape, dtype=np.float32))


def _fp32_numbers(random: np.random.Generator, shape: tuple[int, ...], wild: bool) -> np.ndarray:
    """float32 with all its digits: bell-shaped, or every bit pattern."""
    if wild:
        return random.integers(0, 1 << 32, size=shape, dtype=np.uint32).view(np.float32)
    return random.standard_normal(shape, dtype=np.float32)


def _route(random: np.random.Generator, routing: str, shape: tuple[int, int], experts: int):
    tokens, topk = shape
    if routing == "nothing":
        return np.full(shape, -1, dtype=np.int64)
    if routing == "one expert":
        idx = np.full(shape, -1, dtype=np.int64)
        idx[:, 0] = int(random.integers(experts))
        return idx
    if routing == "skewed":
        weights = 1.0 / np.arange(1, experts + 1) ** 1.5
        return random.choice(experts, size=shape, p=weights / weights.sum()).astype(np.int64)
    if routing == "duplicates":
        idx = random.integers(experts, size=shape)
        idx[:, -1] = idx[:, 0]
        return idx.astype(np.int64)
    idx = random.random((tokens, experts)).argsort(axis=1)[:, :topk].astype(np.int64)
    if idx.shape[1] < topk:  # more selections than experts
        idx = np.pad(idx, ((0, 0), (0, topk - idx.shape[1])), constant_values=-1)
    if routing == "holes":
        idx[random.random(shape) < 0.3] = -1
    return idx


def fill(case: Case, tokens: list[int]) -> Case:
    """Gives every rank its tokens, routing and weights."""
    for rank, count in enumerate(tokens):
        random = case.random(rank, 1)
        case.x.append(_numbers(random, (count, case.hidden), case.wild))
        common = case.random(2) if case.routing == "one expert" else random
        shape = (count, case.num_topk)
        case.topk.append(
            np.ascontiguousarray(_route(common, case.routing, shape, case.num_experts))
        )
        case.weights.append(random.random(shape, dtype=np.float32) + np.float32(0.01))
    return case


def make(seed: int, number: int, num_ranks: int) -> Case:
    """The n-th random case."""
    random = np.random.default_rng([seed, number, num_ranks])
    fp8 = bool(random.integers(2))
    hidden = 128 * int(random.integers(1, 5)) if fp8 else 8 * int(random.integers(1, 40))
    num_max = int(random.integers(1, 33))
    case = Case(
        num_ranks=num_ranks,
        num_experts=num_ranks * int(random.integers(1, 9)),
        num_topk=int(random.choice([1, 2, 3, 4, 8, 9, 16, 64], p=[0.2] + [0.13] * 5 + [0.1, 0.05])),
        hidden=hidden,
        num_max=num_max,
        fp8=fp8,
        routing=ROUTINGS[number % len(ROUTINGS)],
        salt=(seed, number, num_ranks),
        wild=bool(random.random() < 0.2),
    )
    case.round_scale = fp8 and bool(random.integers(2))
    case.ue8m0 = case.round_scale and hidden % 512 == 0
    case.fp32_outputs = bool(random.integers(2))
    asks = np.random.default_rng([seed, number, num_ranks, 11]).random(num_ranks)
    # None, some, or all.
    case.pre_reduce = ((), tuple((asks < 0.5).tolist()), (True,) * num_ranks)[
        number // len(ROUTINGS) % 3
    ]
    full = random.random() < 0.2
    tokens = [num_max if full else int(random.integers(num_max + 1)) for _ in range(num_ranks)]
    return fill(case, tokens)
