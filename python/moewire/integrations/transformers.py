"""``ep_implementation="moewire"`` for Hugging Face transformers.

    import moewire.integrations.transformers  # registers

    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.bfloat16,
        experts_implementation="grouped_mm",
        distributed_config=DistributedConfig(
            fsdp_size=R, ep_size=R, ep_implementation="moewire"
        ),
    )

Every rank has its own batch; its tokens go to the ranks that hold their experts and come
back weighted and summed. Ranks of a tensor-parallel group (``tp_size``) share a batch: each
sends a slice of it. Tested with transformers 5.23.0; its interface for this is young.

Inference and training, in bf16, on the CPU. On CUDA it was never run; there it needs
``MOEWIRE_UNTESTED_DEVICES=1`` (docs/transformers.md). All ranks must call the model equally often;
in inference a rank without work calls ``join``. Any number of tokens goes through, in rounds of at
most ``configure(max_tokens=...)`` per rank, on CUDA in one round. Gradients are those of
``moewire.autograd``.

``shard_experts`` spreads a model that each rank has loaded whole, without a process group or FSDP.
Then ranks may be lost in the middle of a text, and come back.

The sum over a token's experts is made in float32 in the order of the selections, as one process
does it. So results are equal to the bit where the router's weights are float32 (Mixtral,
DeepSeek-V3). Qwen3-MoE, OLMoE and GPT-OSS round these weights to bf16 and then
round each product, too: ``fp32_router_scores`` makes both sides equal.
"""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard

from .._abi import LIMITS
from .._base import check
from .._base.check import integer, limited
from ..buffer import Buffer
from ..errors import InvalidArgument
from . import _buffers, _devices, _engines, _exchange
from ._buffers import InGroup, InStore, Key, Ranks
from ._exchange import Stats
from ._routers import fp32_router_scores

try:
    from transformers.distributed.expert_parallel import (
        EPImplementation,
        EPImplementationInterface,
    )
except ImportError as error:
    raise ImportError(_engines.lacking_transformers(error)) from error

__all__ = [
    "MoewireEP",
    "Stats",
    "buffers",
    "close",
    "configure",
    "fp32_router_scores",
    "gather_dense_weights",
    "join",
    "register",
    "reset_stats",
    "shard_experts",
    "stats",
]

NAME = "moewire"
DEFAULT_MAX_TOKENS = 512
_OWN = "_moewire_ep"  # on an experts module: its MoewireEP
_GATHERED = "_moewire_gathered"  # on a model: gather_dense_weights was called


@dataclass
class _Settings:
    max_tokens: int
    timeout_us: int = -1


def _tokens_from_environment() -> int:
    text = os.environ.get("MOEWIRE_TRANSFORMERS_MAX_TOKENS", str(DEFAULT_MAX_TOKENS))
    number = int(text) if text.isascii() and text.isdigit() else 0
    least, most = LIMITS["num_max_tokens_per_rank"]
    if not least <= number <= most:
        raise InvalidArgument(
            f"MOEWIRE_TRANSFORMERS_MAX_TOKENS={text!r}: a number of tokens, {least} to {most}"
        )
    return number


_settings = _Settings(_tokens_from_environment())


def configure(*, max_tokens: int | None = None, timeout_us: int | None = None) -> None:
    """Sets what applies to later forwards; the same on every rank.

    Args:
        max_tokens: of one rank in one round; the workspace is sized by it (address space,
            which becomes memory as rows arrive). Default 512, or
            ``MOEWIRE_TRANSFORMERS_MAX_TOKENS`` when this module is imported. None: as it is.
        timeout_us: how long a phase of an exchange waits for the other ranks; -1: no limit. None:
            as it is.

    Raises:
        InvalidArgument: a value is out of its bounds; nothing is changed.
    """
    global _settings
    new = _Settings(**vars(_settings))
    if max_tokens is not None:
        new.max_tokens = limited("max_tokens", max_tokens, "num_max_tokens_per_rank")
    if timeout_us is not None:
        new.timeout_us = check.timeout(timeout_us)
    _settings = new


class MoewireEP(EPImplementation):  # type: ignore[misc]  # transformers has no types
    """The exchange of one MoE layer. transformers makes one for each experts module."""

    def __init__(self, experts: Any, ep_mesh: Any, tp_mesh: Any) -> None:
        super().__init__(experts, ep_mesh, tp_mesh)
        self._open(experts, InGroup(ep_mesh.get_group()))

    def _open(self, experts: Any, place: Ranks) -> None:
        self.place = place
        self.stats = Stats(self.num_local_experts)
        self.key: Key | None = None  # of the Buffer in use; made by the first call
        setattr(experts, _OWN, self)

    def __call__(
        self,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
    ) -> torch.Tensor:
        _refuse(hidden_states)
        given = (hidden_states, top_k_index, top_k_weights)
        shared = self.tp_mesh is not None and self.tp_mesh.size() > 1
        x, idx, weights = (_own_slice(t, self.tp_mesh) for t in given) if shared else given
        tokens = _exchange.Tokens(
            x.contiguous(),
            idx.to(torch.int64).contiguous(),
            weights.to(torch.float32).contiguous(),
        )
        num_tokens, hidden = hidden_states.shape
        self.key = self._key(hidden, str(hidden_states.device))
        layer = _exchange.Layer(self.key, self._run_experts, self.stats, _settings.timeout_us)
        out = _exchange.exchange(layer, tokens)
        return _all_slices(out, self.tp_mesh, num_tokens) if shared else out

    def _key(self, hidden: int, device: str) -> Key:
        place = _buffers.on(self.place, device)
        num_experts = self.num_local_experts * place.num_ranks
        return Key(place, hidden, num_experts, torch.bfloat16, _settings.max_tokens)

    def _run_experts(self, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        # Weight 1: the routing weights are applied where the token came from.
        weights = torch.ones(ids.shape, dtype=rows.dtype, device=rows.device)
        results: torch.Tensor = self.experts_forward(rows, ids, weights)
        return results


class _Sharded(MoewireEP):
    """The exchange of one MoE layer of ``shard_experts``; ``model``: all its layers, in order."""

    def __init__(self, experts: Any, place: InStore, model: list[_Sharded]) -> None:
        self.experts_forward = experts.forward
        self.num_local_experts = experts.num_experts
        self.tp_mesh = None
        self._model = model
        model.append(self)
        self._open(experts, place)

    def _key(self, hidden: int, device: str) -> Key:
        """The key of this layer. Makes the Buffers of all layers of the model if they are new."""
        key = super()._key(hidden, device)
        if _buffers.find(key) is None:
            self._make_all(hidden, device)
        return key

    def _make_all(self, hidden: int, device: str) -> None:
        # All at once and in order of the layers, as the other ranks update them. A fresh process
        # that went on from its first layer would wait there for ranks that wait for it in an
        # update.
        for layer in self._model:
            if layer.key is not None and layer.key.hidden != hidden:
                raise InvalidArgument(
                    f"hidden_states: {hidden} wide; shard_experts takes models whose MoE layers "
                    f"have one hidden size, and others of this one have {layer.key.hidden}"
                )
        for layer in self._model:
            layer.key = MoewireEP._key(layer, hidden, device)
            _buffers.buffer_for(layer.key)


def _own_slice(tensor: torch.Tensor, tp_mesh: Any) -> torch.Tensor:
    """This rank's part of what all ranks of ``tp_mesh`` hold; its backward puts parts together."""
    whole = DTensor.from_local(tensor, tp_mesh, [Replicate()], run_check=False)
    return whole.redistribute(tp_mesh, [Shard(0)]).to_local()


def _all_slices(part: torch.Tensor, tp_mesh: Any, num_tokens: int) -> torch.Tensor:
    """The parts [t, H] of all ranks of ``tp_mesh`` as [T, H], on each of them."""
    shape = torch.Size((num_tokens, part.shape[1]))
    split = DTensor.from_local(part, tp_mesh, [Shard(0)], shape=shape, stride=(shape[1], 1))
    return split.full_tensor()


def _refuse(hidden_states: torch.Tensor) -> None:
    kind = hidden_states.device.type
    if hidden_states.dtype != torch.bfloat16 or not _devices.takes(kind):
        raise InvalidArgument(
            f"hidden_states: {hidden_states.dtype} on {hidden_states.device}; torch.bfloat16 on "
            f"{' and '.join(_devices.KINDS)}: from_pretrained(..., dtype=torch.bfloat16)"
            f"{'' if _devices.takes(kind) else _devices.fix(kind)}"
        )


def register(name: str = NAME) -> None:
    """Registers ``ep_implementation=name``. Importing this module has done it for "moewire".

    Args:
        name: what models ask for.
    """
    EPImplementationInterface.register(name, MoewireEP)


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, MoewireEP]]:
    for name, module in model.named_modules():
        implementation = getattr(module, _OWN, None)
        if implementation is not None:
            yield name, module, implementation


def stats(model: torch.nn.Module) -> dict[str, Stats]:
    """What each MoE layer of ``model`` did on this rank.

    Args:
        model: a model with layers that exchange through Moewire.

    Returns:
        The ``Stats`` of each layer, by the name of its experts module.
    """
    return {name: implementation.stats for name, _, implementation in _layers(model)}


def reset_stats(model: torch.nn.Module) -> None:
    """Starts counts and times at 0 again.

    Args:
        model: one with layers that Moewire serves.
    """
    for _, _, implementation in _layers(model):
        implementation.stats = Stats(implementation.num_local_experts)


def buffers(model: torch.nn.Module) -> list[Buffer]:
    """The Buffers that the layers of ``model`` share. ``Buffer.counters`` has the core's own
    counts.

    Args:
        model: a model with layers that exchange through Moewire.

    Returns:
        One Buffer, if all layers have the same shapes. Empty before the first forward, and after
        ``close``.
    """
    keys = dict.fromkeys(implementation.key for _, _, implementation in _layers(model))
    found = (_buffers.find(key) for key in keys if key is not None)
    return [buffer for buffer in found if buffer is not None]


def close() -> None:
    """Closes every Buffer made here; other ranks that wait for this one are told."""
    _buffers.close_buffers()


def gather_dense_weights(model: torch.nn.Module) -> None:
    """Gathers what FSDP sharded, once, and keeps it: attention, norms, embeddings. Collective.

    For inference, if the model's dense weights fit on each rank. Without it every forward
    gathers every layer again; with it a forward exchanges tokens and nothing else.

    Args:
        model: one that FSDP has sharded; changed in place.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
    setattr(model, _GATHERED, True)


def shard_experts(model: torch.nn.Module, store: dist.Store, rank: int, num_ranks: int) -> None:
    """Spreads the experts of a model that every rank has loaded whole; keeps this rank's share.

    It needs no process group and no FSDP: the ranks meet in ``store`` at their first forward. So a
    rank may be lost at any time (its experts then contribute nothing), and a fresh process may
    take its place. The fresh process loads the model, calls this and forwards. Meanwhile the others
    call ``update_ep_member()`` on each of ``buffers(model)``, in that order and before their next
    forward.

    The first forward makes the Buffers of all layers, in order of the layers. Layers may differ in
    their number of experts, not in their hidden size. Everything except the experts runs on each
    rank; its gradients are each rank's own, and the caller has to reduce them.

    Args:
        model: with ``num_experts`` experts per layer, a multiple of ``num_ranks``.
        store: one that outlives every rank.
        rank: this process's rank, 0 to ``num_ranks`` - 1.
        num_ranks: R.

    Raises:
        InvalidArgument: an argument is wrong; the model is left as it is.
    """
    integer("rank", rank, 0, limited("num_ranks", num_ranks) - 1)
    place = InStore(store, rank, num_ranks)
    layers = [module for name, module in model.named_modules() if name.endswith(".experts")]
    if not layers:
        raise InvalidArgument(f"model: {type(model).__name__} has no experts that this knows")
    for experts in layers:
        _refuse_to_share(experts, num_ranks)
    siblings: list[_Sharded] = []
    for experts in layers:
        _keep_share(experts, rank, num_ranks)
        experts.forward = _Sharded(experts, place, siblings)
    setattr(model, _GATHERED, True)


def _refuse_to_share(experts: Any, num_ranks: int) -> None:
    if hasattr(experts, _OWN):
        raise InvalidArgument("model: its experts are spread already; each model once")
    if not hasattr(experts, "num_experts"):
        raise InvalidArgument(f"model: its experts, {type(experts).__name__}, have no num_experts")
    if experts.num_experts % num_ranks:
        raise InvalidArgument(f"num_ranks: {num_ranks}; a divisor of {experts.num_experts} experts")


def _keep_share(experts: Any, rank: int, num_ranks: int) -> None:
    share = int(experts.num_experts) // num_ranks
    for name, parameter in list(experts.named_parameters(recurse=False)):
        own = parameter.detach()[rank * share : (rank + 1) * share].clone()
        setattr(experts, name, torch.nn.Parameter(own, parameter.requires_grad))
    experts.num_experts = share


def join(model: torch.nn.Module) -> None:
    """Takes part in one forward of the other ranks without tokens of its own.

    This rank's experts serve the others' tokens; nothing else of the model runs. Needs
    ``gather_dense_weights(model)``; otherwise the others would wait for this rank's weights.

    Args:
        model: the model that the other ranks run.

    Raises:
        InvalidArgument: no layer of the model exchanges through Moewire, or
            ``gather_dense_weights`` was not called.
    """
    if not any(_layers(model)):
        raise InvalidArgument(
            f"model: {type(model).__name__} has no layer that exchanges through moewire; load it "
            'with ep_size and ep_implementation="moewire", or call shard_experts'
        )
    if not getattr(model, _GATHERED, False):
        raise InvalidArgument("model: call gather_dense_weights(model) on every rank before join")
    hidden = int(model.config.get_text_config().hidden_size)
    with torch.no_grad():
        for _, experts, implementation in _layers(model):
            device = _device_of(experts, implementation)
            nothing = torch.empty((0, hidden), dtype=torch.bfloat16, device=device)
            nowhere = torch.empty((0, 1), dtype=torch.int64, device=device)
            weights = torch.empty((0, 1), dtype=torch.float32, device=device)
            experts(nothing, nowhere, weights)


def _device_of(experts: torch.nn.Module, implementation: MoewireEP) -> str:
    """Where a layer's tokens are: where its weights are, else as in the last forward.

    Weights on the CPU say nothing: they may be kept there between two forwards.
    """
    parameter = next(experts.parameters(), None)
    if parameter is not None and parameter.device.type != "cpu":
        return str(parameter.device)
    return "cpu" if implementation.key is None else implementation.key.place.device


register()
_engines.warn_untested_transformers()
