"""The switch on vLLM's command line: ``--additional-config '{"moewire": "batched"}'``.

vLLM loads plug-ins before it has read its configuration, so this module reads the command line
itself. It puts the setting into the environment, which the processes that vLLM starts inherit.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping, Sequence
from typing import Any

OPTION = "--additional-config"
KEY = "moewire"


def export(argv: Sequence[str], environ: MutableMapping[str, str], switch: str) -> None:
    """Sets the switch from the command line, unless it is set."""
    asked = wanted(argv)
    if asked is not None and not environ.get(switch):
        environ[switch] = asked


def wanted(argv: Sequence[str]) -> str | None:
    """The command line's setting for Moewire, as a value of the switch; None: there is none.

    As in vLLM, the last setting counts, and underscores stand for dashes.
    """
    found = None
    for i, word in enumerate(argv):
        name, joined, value = word.partition("=")
        name, _, dotted = name.replace("_", "-").partition(".")
        if name != OPTION:
            continue
        text = value if joined else next(iter(argv[i + 1 :]), "")
        given = text if dotted == KEY else _entry(text) if not dotted else None
        found = found if given is None else _switch(given)
    return found


def _entry(text: str) -> Any:
    try:
        config = json.loads(text)
    except ValueError:
        return None  # vLLM says what is wrong with it
    return config.get(KEY) if isinstance(config, dict) else None


def _switch(given: Any) -> str:
    """True and "true" turn it on; a list is one of parts."""
    if isinstance(given, list):
        return ",".join(map(str, given))
    text = str(given).lower() if isinstance(given, bool) else str(given)
    return {"true": "1", "false": "0"}.get(text, text)
