"""The handles of one dispatch, to be combined."""

from __future__ import annotations

from ._base import needs_torch  # noqa: F401, isort: skip

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from . import _abi as abi
from ._base.numbers import refuse
from ._base.opaque import opaque_methods
from ._native.plan import Plan
from ._native.runtime import Runtime

if TYPE_CHECKING:
    from typing_extensions import Self

# Answers to a release that are no error: the handle was released before, or the buffer is closed.
_RELEASED = (abi.MW_OK, abi.MW_ERR_STALE_HANDLE, abi.MW_ERR_HANDLE, abi.MW_ERR_CLOSED)


class Driven(Protocol):
    """An operation: the CPU drives it to its end; on CUDA its rest is launched."""

    def finish(self) -> None: ...

    def abandon(self) -> None: ...

    def when_done(self, callback: Callable[[], None]) -> None: ...


@opaque_methods
class Held:
    """What a rank holds of one dispatch, until it is released.

    Any thread may release. A release while the receive hook runs cancels the operation.
    """

    _made_by = "dispatch"  # the method that callers know it from
    _runtime: Runtime
    _result: abi.mw_dispatch_result_t
    _operation: Driven
    _num_tokens: int
    _combined = False
    _released = True  # until there is something: torch's tracer makes handles of nothing

    @property
    def _id(self) -> abi.mw_handle_t:
        return self._result.handle  # type: ignore[no-any-return]

    @property
    def peers_have_more(self) -> bool:
        """Whether any rank dispatched with ``more=True``. Finishes the receive phase."""
        self.finish()
        return bool(self._result.peers_have_more)

    def finish(self) -> None:
        """Finishes the dispatch's receive phase, if its hook or event has not."""
        self._operation.finish()

    def release(self) -> None:
        """Tells every rank that this one is done with the operation. Idempotent.

        Raises:
            MoewireError: the release failed. A handle that was released before, or a closed buffer,
                is no error.
        """
        status = self._release()
        if status not in _RELEASED:
            raise self._runtime.error(status)

    def _release(self) -> int:
        if self._released or self._runtime.closed or self._runtime.lib.forked:
            return abi.MW_OK
        self._released = True
        self._operation.abandon()
        return self._runtime.lib.handle_release(self._result.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __del__(self) -> None:
        if not self._combined:
            self._release()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a moewire handle cannot be copied or pickled; it belongs to its process")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Handle(Held, tuple[Any, ...]):
    """Unpacks into ``(src_info, layout_range, M, H, E)``, as upstream's handle does.

    - ``src_info``: int32 [L, R*M], the token index on the source rank of each received row.
    - ``layout_range``: int64 [L, R], ``first row << 32 | number of rows`` of that source.
    - ``M``, ``H``, ``E``: int; tokens per rank at most, hidden size, number of experts.

    A handle may be combined more than once. The views that its dispatch returned are valid until
    the handle is released: by ``release()``, by leaving ``with handle:``, or by dropping a handle
    that was never combined. A combined handle is released by the next call on the buffer that is
    not a combine of the same handle. Until it is combined or released, the handle occupies one of
    the ``num_slots``. A rank that will not combine what other ranks combine must release, so that
    they get an error instead of waiting.

    Any thread may release. A release while the receive hook runs cancels the operation.
    """

    _plan: Plan

    def __new__(
        cls,
        items: tuple[Any, ...],
        runtime: Runtime,
        result: abi.mw_dispatch_result_t,
        operation: Driven,
        plan: Plan,
        num_tokens: int,
    ) -> Handle:
        self = tuple.__new__(cls, items)
        self._released = False
        self._runtime = runtime
        self._result = result
        self._operation = operation
        self._plan = plan
        self._num_tokens = num_tokens
        return self


def refuse_foreign(runtime: Runtime, handle: object, kind: type[Held]) -> None:
    """Raises unless this is a handle of the right kind, and of this buffer."""
    if not isinstance(handle, kind):
        given = f"a {type(handle).__name__}"
        raise refuse("handle", given, f"the handle that {kind._made_by} returned, itself")
    if handle._runtime is not runtime:
        raise refuse("handle", "a handle of another Buffer", "one of this Buffer's")
