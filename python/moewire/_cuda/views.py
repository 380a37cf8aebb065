"""Tensors over a buffer's workspace on a CUDA device."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import torch

from .. import _abi as abi
from .._base.place import Place
from .._ep.results import Rows, over_workspace
from .._native.memory import MAX_KEPT, Owner
from .._native.plan import Plan
from .._native.runtime import Runtime
from ..errors import MoewireError


class Views:
    """The views that a buffer made last, and the owner that keeps the workspace in place."""

    def __init__(self, runtime: Runtime, place: Place) -> None:
        self._runtime, self._place = runtime, place
        self._views: OrderedDict[object, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._owner: Owner | None = None

    def close(self) -> None:
        """Forgets every view; tensors that are still held keep the memory."""
        with self._lock:
            let_go = self._views, self._owner
            self._views, self._owner = OrderedDict(), None
        del let_go  # not under the lock: memory may go with it

    def own(self, raw: abi.mw_dispatch_result_t) -> Owner:
        """Keeps the workspace in place for callers that make views of it and hold the owner.

        Another thread may close the buffer at any moment. Then each caller gets an owner of its
        own.
        """
        owner = self._owner
        return self._new_owner(raw) if owner is None else owner

    def _new_owner(self, raw: abi.mw_dispatch_result_t) -> Owner:
        try:
            made = Owner(self._runtime.lib, raw.memory.id)
        except MoewireError:
            self._runtime.refuse_closed()
            raise
        with self._lock:
            if self._owner is None and not self._runtime.closed:
                self._owner = made
        return made

    def rows(self, raw: abi.mw_dispatch_result_t, plan: Plan) -> Rows:
        """Views of where a dispatch's rows are.

        Views of an earlier dispatch are used again only if every address and the plan, which has
        shapes and types, are the same: new views would be equal to them. They lie in the
        workspace, which the owner keeps in place as long as a view is kept here. Which rows they
        show depends on the slot, and callers never get the kept tensors themselves.
        """
        owner = self.own(raw)
        key = (raw.recv_x, raw.src_info, raw.recv_scales, plan)
        rows: Rows | None = self._views.get(key)
        if rows is None:
            rows = self.rows_of(raw, plan, owner)
            self._keep(key, rows)
        return rows

    def rows_of(self, raw: abi.mw_dispatch_result_t, plan: Plan, owner: Owner) -> Rows:
        """The same for a caller that has an owner."""

        def view(address: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            return self.view(address, shape, dtype, owner)

        return over_workspace(view, raw, plan)

    def view(
        self, address: int, shape: tuple[int, ...], dtype: torch.dtype, owner: Owner
    ) -> torch.Tensor:
        """A view, made once per place and shape; after ``close``, at every call.

        It holds its owner, which keeps the memory when the buffer is closed, too.
        """
        key = (address, shape, dtype)
        view: torch.Tensor | None = self._views.get(key)
        if view is None:
            view = self._place.view(address, shape, dtype, owner)
            self._keep(key, view)
        return view

    def _keep(self, key: object, made: Any) -> None:
        with self._lock:
            if self._owner is not None:
                self._views[key] = made
            while len(self._views) > 4 * MAX_KEPT:
                self._views.popitem(last=False)
