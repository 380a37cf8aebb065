"""The flat rows of one dispatch on CUDA. Only the device knows how many came.

A caller that asks for the number waits for its stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .._base.place import Place
from .._ep.flat_results import FlatRows
from .._ep.results import Rows, copies_of_all
from .._native.plan import Plan
from .handles import refuse_capture
from .views import Views

if TYPE_CHECKING:
    from .._ep.dispatch import Outputs
    from .._native.memory import Owner


class GpuFlatRows(FlatRows):
    """While a graph is recorded there are as many rows as there is room for."""

    def __init__(
        self, place: Place, views: Views, plan: Plan, outputs: Outputs, stream: Any, captured: bool
    ) -> None:
        counts, layout, self._raw = outputs
        super().__init__(counts, layout)
        self._place, self._views, self._plan = place, views, plan
        self._stream, self._recorded, self._known = stream, captured, False
        self._owner: Owner | None = None
        self._copied: Rows | None = None
        self._filling = threading.Lock()

    def launched(
        self, copy: bool, when_done: Callable[[Callable[[], None]], None]
    ) -> list[torch.Tensor]:
        """Keeps the workspace from now on, and copies after the rows have come; gives the copies.

        It copies as many rows as there is room for, so that it need not wait for their number.
        """
        owner = self._owner = self._views.own(self._raw)
        if not copy:
            return []
        with self._place.on(self._stream):  # memory then belongs to this stream
            self._copied = copies_of_all(self._all(owner), when_done)
        return self._copied.parts()

    def ranges(self) -> torch.Tensor:
        self._place.keep(self.layout, self._place.stream())  # the copy is made there
        return super().ranges()

    def wait(self) -> None:
        """Waits for the stream of the dispatch, once."""
        with self._filling:
            if not self._known:
                self._look()

    def _look(self) -> None:
        place = self._place
        if self._recorded:
            self.num_rows = self._plan.rows[0]
        else:
            refuse_capture(place, self._stream, "num_recv_tokens")
            place.finish(self._stream)
            self.num_rows = int(self.counts[0])
        owner = self._owner  # another thread may forget at any moment
        if owner is not None:  # else the tensors were forgotten
            with place.on(self._stream):  # empty tensors are made anew
                rows = self._copied or self._all(owner)
                self.tensors = rows.first(self.num_rows, False)
            if self._owner is None:
                self.tensors = None
        self._known, self._copied = True, None

    def forget(self) -> None:
        # In this order, which ``_look`` relies on. A wait for it could be one for a device.
        self._owner = None  # else a caller that keeps the handle would keep the workspace
        super().forget()

    def _all(self, owner: Owner) -> Rows:
        return self._views.rows_of(self._raw, self._plan, owner)
