"""A CPU tensor that is as shy as one of a device: what would fail there fails here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_CROSS = {torch.Tensor.copy_, torch.Tensor.__setitem__, torch.Tensor.__getitem__}


class AsDevice(torch.Tensor):
    """It has no numpy array, and does not mix with tensors of the CPU; ``cpu()`` copies it."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.numpy:
            raise TypeError("a tensor of a device has no numpy array: copy it by cpu()")
        plain = [a for a in args if isinstance(a, torch.Tensor) and not isinstance(a, AsDevice)]
        if func not in _CROSS and any(tensor.dim() for tensor in plain):
            raise RuntimeError(f"{func}: tensors of a device and of the CPU")
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.cpu:
            return result.as_subclass(torch.Tensor).clone()
        return result
