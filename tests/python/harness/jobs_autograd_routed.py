"""Jobs about gradients over routings, against plain torch in one process.

Numbers are so small and even that nothing is rounded anywhere: every bit must be right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

import moewire
from moewire import autograd

from . import routings
from .member import Rank
from .routings import BF16, FLOAT32, TIMEOUT_US, Case


class Form(NamedTuple):
    """How a layer calls scatter and gather."""

    expanded: bool = False
    alignment: int = 1
    rows: torch.dtype = BF16
    weights: torch.dtype = FLOAT32


FORMS = {
    "compact": Form(),
    "float32": Form(rows=FLOAT32),
    "bf16 weights": Form(weights=BF16),
    "expanded": Form(expanded=True),
    "aligned": Form(expanded=True, alignment=4),
}


class Leaves(NamedTuple):
    """What is learned. Of all ranks for the reference, of one for a layer."""

    x: list[torch.Tensor]  # [T, H] of each rank
    weights: list[torch.Tensor]  # [T, K]
    scales: torch.Tensor  # float32 [E]; an expert multiplies its rows
    shared: torch.Tensor  # float32 [R]; each rank multiplies all its rows
    bias: list[torch.Tensor]  # [T, H]


def drawn(case: Case, form: Form) -> tuple[Leaves, list[torch.Tensor]]:
    """Leaves of all ranks, and the gradients of their results."""
    random = torch.Generator().manual_seed(case.seed)

    def numbers(*shape: int, low: int = -1) -> torch.Tensor:
        return torch.randint(low, 3, shape, generator=random).float()

    shapes = [(len(one), case.hidden) for one in case.ids]
    leaves = Leaves(
        [numbers(*shape).to(form.rows) for shape in shapes],
        [(numbers(*one.shape, low=1) / 2).to(form.weights) for one in case.ids],
        numbers(case.num_experts),
        numbers(case.num_ranks),
        [numbers(*shape).to(form.rows) for shape in shapes],
    )
    return leaves, [numbers(*shape).to(form.rows) for shape in shapes]


def reference(case: Case, given: Leaves, form: Form, grads: list[torch.Tensor]) -> Leaves:
    """Results in place of x's, and the gradients of everything; token by token, in float64."""

    def widened(one: torch.Tensor) -> torch.Tensor:
        return one.detach().double().requires_grad_()

    x, weights, bias = (
        [widened(one) for one in some] for some in (given.x, given.weights, given.bias)
    )
    scales, shared = widened(given.scales), widened(given.shared)
    total = scales.new_zeros(())
    for source, ids in enumerate(case.listed):
        for token, selected in enumerate(ids):
            factor = scales.new_zeros(())
            for k, expert in enumerate(selected):
                if expert >= 0:
                    factor = factor + weights[source][token, k] * scales[expert]
            for rank in case.ranks_of(source, token) if not form.expanded else ():
                factor = factor + shared[rank]
            out = bias[source][token] + factor * x[source][token]
            total = total + (out * grads[source][token].double()).sum()
    if total.requires_grad:
        total.backward()

    def of(one: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(one) if one.grad is None else one.grad

    return Leaves([*map(of, x)], [*map(of, weights)], of(scales), of(shared), [*map(of, bias)])


class Trained:
    """A layer over one routing: forward at once, backward when it is asked for."""

    def __init__(self, rank: Rank, buffer: moewire.Buffer, case: Case, form: Form) -> None:
        self.case, self.form, self.rank = case, form, rank.rank
        self.given, self.grads = drawn(case, form)
        local = slice(rank.rank * case.num_local, (rank.rank + 1) * case.num_local)
        self.local = local
        self.x = self.given.x[rank.rank].clone().requires_grad_()
        self.weights = self.given.weights[rank.rank].clone().requires_grad_()
        self.scales = self.given.scales[local].clone().requires_grad_()
        self.shared = self.given.shared[rank.rank].clone().requires_grad_()
        self.bias = self.given.bias[rank.rank].clone().requires_grad_()
        self.routing = buffer.make_routing(
            case.ids[rank.rank],
            case.num_experts,
            is_token_in_rank=None if case.in_rank is None else case.in_rank[rank.rank],
            timeout_us=TIMEOUT_US,
        )
        self.out = self.forward(buffer)
        self.loss = (self.out.float() * self.grads[rank.rank].float()).sum()

    def forward(self, buffer: moewire.Buffer) -> torch.Tensor:
        form, routing = self.form, self.routing
        how = {"expanded": form.expanded, "expert_alignment": form.alignment}
        rows, weights = autograd.scatter(
            buffer, routing, self.x, self.weights, timeout_us=TIMEOUT_US, **how
        )
        assert weights is not None
        if form.expanded:
            places = [-(-n // form.alignment) * form.alignment for n in routing.counts]
            factor = weights * self.scales.repeat_interleave(torch.tensor(places))
        else:
            ids = routing.recv_topk_idx()
            factor = (weights * self.scales[ids.clamp(min=0)]).sum(1) + self.shared
        y = (rows.float() * factor[:, None]).to(rows.dtype)
        if not routing.num_rows:
            y = torch.empty_like(rows)  # no experts run here, and nothing leads back to the rows
        return autograd.gather(
            buffer,
            routing,
            y,
            rows=rows,
            bias=[self.bias],
            dtype=form.rows,
            timeout_us=TIMEOUT_US,
            **how,
        )

    def check(self) -> None:
        """What autograd left, after the backward."""
        want, rank = reference(self.case, self.given, self.form, self.grads), self.rank
        for what, leaf, gradient in (
            ("x", self.x, want.x[rank]),
            ("weights", self.weights, want.weights[rank]),
            ("scales", self.scales, want.scales[self.local]),
            ("shared", self.shared, want.shared[rank]),
            ("bias", self.bias, want.bias[rank]),
        ):
            got = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            assert got.dtype is leaf.dtype, (what, got.dtype)
            assert torch.equal(got.double(), gradient), (what, got, gradient)


def every_form(rank: Rank, count: int) -> int:
    """Random cases in every form; how many rows came."""
    num_rows = 0
    with rank.buffer() as buffer:
        for number in range(count):
            for which, form in enumerate(FORMS.values()):
                case = routings.make(rank.random(number, which), rank.size, 12)
                one = Trained(rank, buffer, case, form)
                one.loss.backward()
                one.check()
                num_rows += one.routing.num_rows
    return num_rows


def held(rank: Rank, count: int) -> None:
    """Many routings from forward to backward: backwards in any order, and one of several."""
    random = rank.random(9)
    with rank.buffer() as buffer:
        forms = [*FORMS.values()]
        made = [
            Trained(rank, buffer, routings.make(random, rank.size, 4), forms[number % len(forms)])
            for number in range(count)
        ]
        first, rest = made[: count // 2], made[count // 2 :]
        for number in random.permutation(len(first)):
            first[number].loss.backward()
        torch.stack([one.loss for one in rest]).sum().backward()
        for one in made:
            one.check()


def refused(rank: Rank) -> list[str]:
    """Texts of what cannot work; nothing was sent."""
    case = Case([torch.zeros((2, 2), dtype=torch.int64)], 2, 8, 3)
    x, found = torch.ones((2, 8), dtype=BF16), []
    with rank.buffer() as buffer:
        routing = buffer.make_routing(case.ids[0], 2)
        calls: list[Callable[[], object]] = [
            lambda: autograd.scatter(None, routing, x),  # type: ignore[arg-type]
            lambda: autograd.scatter(buffer, None, x),  # type: ignore[arg-type]
            lambda: autograd.scatter(buffer, routing, x.half()),
            lambda: autograd.scatter(buffer, routing, x.float(), expanded=True),
            lambda: autograd.scatter(buffer, routing, x, torch.ones((2, 2)).double()),
            lambda: autograd.gather(buffer, routing, x[:1]),
            lambda: autograd.gather(buffer, routing, x, dtype=FLOAT32),
            lambda: autograd.gather(buffer, routing, x, rows=0),  # type: ignore[arg-type]
            lambda: autograd.gather(buffer, routing, x, bias=x),
            lambda: autograd.gather(buffer, routing, x, bias=None),  # type: ignore[arg-type]
            lambda: autograd.gather(buffer, routing, x[:, :4].contiguous()),
        ]
        for call in calls:
            try:
                call()
            except moewire.InvalidArgument as error:
                found.append(str(error))
        learns = x.clone().requires_grad_()
        rows, _ = autograd.scatter(buffer, routing, learns)
        buffer.update_ep_member()
        try:
            rows.sum().backward()
        except moewire.StaleHandleError as error:
            found.append(str(error))
    return found
