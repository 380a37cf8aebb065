"""The life of a store, and how its calls end: with codes, and with no error of the client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...errors import InvalidArgument, MoewireError
from ...store._parts import key_of
from ._blocks import Blocks
from ._codes import BAD_ARGUMENT, BAD_KEY, OK, Problem, code_of, log
from ._memory import Regions
from ._setup import Settings, connect, hostname_of

T = TypeVar("T")


class Base:
    """A store that is set up, or not. Safe for use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: Blocks | None = None
        self._settings = Settings("")
        self._hostname = ""
        self._regions = Regions()

    def _open(self, settings: Settings) -> int:
        with self._lock:
            self._shut()
            self._blocks = connect(settings)
            self._settings = settings
            self._hostname = hostname_of(settings)
        return OK

    def _shut(self) -> None:
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.close()

    def _opened(self) -> Blocks:
        blocks = self._blocks
        if blocks is None:
            raise Problem(BAD_ARGUMENT, "the store is not set up")
        return blocks

    def _copying(self) -> Blocks:
        """As ``_opened``, for calls that need the local buffer with Mooncake."""
        blocks = self._opened()
        if self._settings.buffer == 0:
            raise Problem(BAD_ARGUMENT, "local_buffer_size is 0; only calls with addresses work")
        return blocks

    def _run(self, name: str, call: Callable[[], T], failed: Callable[[int], T]) -> T:
        """What a call returns, or what it returns for the code of an error."""
        try:
            return call()
        except (MoewireError, Problem) as error:
            code = code_of(error)
            log.error("mooncake.store %s: %s (%d)", name, error, code)
            return failed(code)

    def _for_each(
        self,
        name: str,
        keys: Sequence[str],
        check: Callable[[int], Any],
        call: Callable[[list[bytes], list[Any]], list[int]],
    ) -> list[int]:
        """Makes a call for the keys that are allowed; a code for each of the others.

        Args:
            name: of the call, for the log.
            keys: the keys.
            check: what goes with the key at a position; raises what is wrong with it.
            call: is given the keys and what goes with them, and answers by position.
        """
        codes, good, wrong = [OK] * len(keys), [], []
        for at, key in enumerate(several(keys)):
            try:
                good.append((at, named(key), check(at)))
            except Problem as problem:
                codes[at] = problem.code
                wrong.append(f"{key!r:.80}: {problem} ({problem.code})")
        if wrong:
            log.error("mooncake.store %s: %d keys, the first %s", name, len(wrong), wrong[0])
        found = call([key for _, key, _ in good], [given for _, _, given in good]) if good else []
        for (at, _, _), code in zip(good, found, strict=True):
            codes[at] = code
        return codes


def named(key: str) -> bytes:
    """A key as the block store has it.

    Raises:
        Problem: it has no bytes, or too many.
    """
    try:
        return key_of(key)
    except InvalidArgument as error:
        raise Problem(BAD_KEY, str(error)) from None


def several(keys: Sequence[str]) -> Sequence[str]:
    """The keys, which are not one text: its characters would be taken for keys."""
    if isinstance(keys, str | bytes):
        raise TypeError(f"keys: a {type(keys).__name__} given; allowed: a list")
    return keys


def as_many(keys: Sequence[Any], **others: Sequence[Any]) -> None:
    """Checks that there is one of each for each key.

    Raises:
        Problem: there is not.
    """
    for name, given in others.items():
        if len(given) != len(keys):
            raise Problem(
                BAD_ARGUMENT, f"{name}: {len(given)} given; allowed: {len(keys)}, as keys"
            )
