"""Ranks that died or are too late: vLLM's step must not go on without their experts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from ...errors import InvalidArgument, MoewireError, PeerLostError

if TYPE_CHECKING:
    from ...handle import Held

TIMEOUT = "MOEWIRE_VLLM_TIMEOUT_US"


def timeout_us(environ: Mapping[str, str] = os.environ) -> int:
    """How long a phase of an exchange waits for other ranks, in microseconds; -1: no limit.

    A late rank is lost to the others, and is fenced. ``InvalidArgument`` names the variable.
    """
    text = environ.get(TIMEOUT, "").strip()
    if text in ("", "-1"):
        return -1
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 1 << 62:
        raise InvalidArgument(f"{TIMEOUT}={text!r}: microseconds, 1 or more, or -1 for no limit")
    return int(text)


def give_up(handle: Held) -> None:
    """Releases a handle that an exception left between its dispatch and its combine.

    If the release fails, for example because this rank is fenced, the next call on the buffer
    raises the reason.
    """
    with contextlib.suppress(MoewireError):
        handle.release()


class Watch:
    """What one rank's exchanges know of the other ranks.

    - ``active_ranks``: int32 [R], on ``device``; lost ranks are cleared in it, in place.
    - ``timeout_us``: the time after which a late rank is lost. Read from the environment when this
      is made.
    """

    def __init__(self, num_ranks: int, device: str = "cpu") -> None:
        self.timeout_us = timeout_us()
        self.active_ranks = torch.ones(num_ranks, dtype=torch.int32, device=device)

    def refuse(self) -> None:
        """Raises ``PeerLostError`` if a rank was lost. Waits for the device, if there is one.

        The exchange itself would go on, and leave out the lost experts' share of every token.
        vLLM has no way to tell this to the clients that wait for the text, so its step fails.
        """
        lost = [rank for rank, active in enumerate(self.active_ranks.tolist()) if not active]
        if lost:
            raise PeerLostError(
                f"expert-parallel ranks {lost} were lost: their experts' share of the result "
                "is missing, and vLLM cannot answer without it"
            )
