"""Calls that ``torch.compile`` does not trace.

These make native calls on memory that the tracer does not know. Where compiled code makes such a
call, the graph ends, the call runs as without ``torch.compile``, and another graph begins after it.
``torch.compiler.disable`` would do that, too. But it loads ``torch._dynamo``, for seconds, and
costs about a microsecond in every call, compiled or not. A mark on the function costs nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch._C._dynamo.eval_frame

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = TypeVar("Kind", bound=type[Any])

_frames: Any = torch._C._dynamo.eval_frame
_REASON = "moewire: native calls"
# Names with an underscore that are marked, too.
_SPECIAL = ("__call__", "__del__", "__enter__", "__exit__")


def opaque(function: Function) -> Function:
    """Marks a function: neither it nor the functions that it calls are compiled."""
    strategy = getattr(_frames, "_FrameExecStrategy", None)
    if strategy is None:
        function = _wrapped(function)
    else:
        skip = _frames._FrameAction.SKIP
        _frames.set_code_exec_strategy(function.__code__, strategy(skip, skip))
    # The tracer ends its graph at a function that has this.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = _REASON  # type: ignore[attr-defined]
    return function


def _wrapped(function: Function) -> Function:
    """For torch before 2.7, where a mark cannot cover a function with all that it calls."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        compiling = _frames.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _frames.set_eval_frame(compiling)

    _frames.skip_code(call.__code__)  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def opaque_methods(kind: Kind) -> Kind:
    """Marks what a class offers to callers: methods, properties, and its context methods."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_") and name not in _SPECIAL:
            continue
        if isinstance(member, FunctionType):
            setattr(kind, name, opaque(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, property(opaque(member.fget), doc=member.__doc__))
    return kind
