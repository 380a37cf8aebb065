"""A CPU tensor that behaves as one of a device: what would fail there fails here.

Every operation on it goes through ``__torch_dispatch__``, also those of a backward. So its results
are of the device, too, and an operation that would mix devices is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("cuda", 0)
_aten = torch.ops.aten
# What CUDA takes tensors of the CPU for: copies, and indices of its own tensors.
_CROSS = {_aten.copy_.default, _aten._to_copy.default, _aten.index.Tensor}
_INDEXED = {_aten.index_put_.default, _aten.index_put.default}


class AsDevice(torch.Tensor):
    """It has no numpy array, and does not mix with tensors of the CPU; ``cpu()`` copies it."""

    _plain: torch.Tensor  # of the same memory
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def of(cls, plain: torch.Tensor) -> AsDevice:
        """A tensor of the device, over the memory of ``plain``, which is a leaf."""
        assert plain.is_leaf, "gradients do not flow between devices here"
        made: AsDevice = torch.Tensor._make_subclass(cls, plain.detach(), plain.requires_grad)
        made._plain = plain.detach()
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        _refuse_mixed(func, args, kwargs)
        given: dict[int, torch.Tensor] = {}

        def plain(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            inside = value._plain if isinstance(value, AsDevice) else value
            given[id(inside)] = value
            return inside

        def there(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            found = given.get(id(value))  # of what is changed in place, itself
            return cls.of(value) if found is None else found

        args, kwargs = tree_map(plain, args), tree_map(plain, kwargs)
        return tree_map(there, func(*args, **kwargs))

    device = property(lambda self: DEVICE)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def cpu(self, *_: Any) -> torch.Tensor:  # type: ignore[override]
        assert not (self.requires_grad and torch.is_grad_enabled()), "detach it first"
        return self._plain.clone()

    def to(self, *args: Any, **kwargs: Any) -> Any:
        device, dtype = device_and_dtype(args, kwargs)
        found = self if dtype is None else super().to(dtype)
        if device is None or device.type == "cuda":
            return found
        return found.cpu().to(device)

    def cuda(self, *_: Any, **__: Any) -> torch.Tensor:
        return self

    def tolist(self) -> Any:
        return self._plain.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("a tensor of a device has no numpy array: copy it by cpu()")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"AsDevice({self._plain!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _again, (self._plain, self.requires_grad)

    def __deepcopy__(self, memo: Any) -> Any:
        return memo.setdefault(id(self), _again(self._plain.clone(), self.requires_grad))


def _again(plain: torch.Tensor, requires_grad: bool) -> AsDevice:
    return AsDevice.of(plain.requires_grad_(requires_grad))


def device_and_dtype(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.device | None, torch.dtype | None]:
    """What of ``Tensor.to``'s arguments matters here."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    for one in (*args, kwargs.get("other")):
        if isinstance(one, torch.Tensor):
            device, dtype = one.device, one.dtype
        elif isinstance(one, torch.dtype):
            dtype = one
        elif isinstance(one, (str, torch.device)):
            device = one
    return None if device is None else torch.device(device), dtype


def _refuse_mixed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if func in _CROSS:
        return
    if func in _INDEXED:
        args = (args[0], args[2])
    found = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    if any(not (isinstance(one, AsDevice) or _anywhere(one)) for one in found):
        raise RuntimeError(f"{func}: tensors of a device and of the CPU")


def _anywhere(plain: torch.Tensor) -> bool:
    """Whether a CPU tensor may be mixed in. CUDA takes numbers of the CPU. And autograd makes the
    zeros of a missing gradient on torch's own device, which a stand-in cannot change.
    """
    in_backward = torch._C._current_graph_task_id() >= 0
    return not plain.dim() or (in_backward and not plain.any())
