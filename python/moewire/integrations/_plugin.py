"""What the plug-ins of engines have in common: the switch, the versions, the log.

An engine loads a plug-in by entry point in every process where Moewire is installed, so a
plug-in does nothing unless the user asked for it. If a plug-in raises, SGLang only logs it and
goes on without the plug-in; vLLM ends. So the logger ``moewire`` says what became of the plug-in.

Nothing here imports an engine or torch, because ``moewire doctor`` uses it, too.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import NamedTuple

from ..errors import UnsupportedError

_log = logging.getLogger("moewire")
_lock = threading.Lock()
_active: dict[str, str] = {}  # engine -> what was put in place in this process

ENTRY_POINT = "moewire"  # our name in every engine's group
UNTESTED = "MOEWIRE_UNTESTED_VERSIONS"


class Mode(NamedTuple):
    """One way in which an engine exchanges rows, by the arguments that choose it.

    Attributes:
        name: the arguments.
        part: of the plug-in that serves it; "" if none does.
        served: on which devices; without a part, why it is not.
        default: its part is in use where none is asked for by name.
        unless: a module; where it is installed the part has to be asked for by name.
    """

    name: str
    part: str
    served: str
    default: bool = True
    unless: str = ""


@dataclass(frozen=True)
class Engine:
    """How one engine finds its plug-in, and how a user asks for it.

    Attributes:
        name: for people, as in "SGLang".
        distributions: names under which it is installed; the first that is there counts.
        tested: the versions, without local part, that the plug-in was tested with.
        group: the engine's group of entry points.
        switch: the environment variable that turns the plug-in on.
        whitelist: the engine's own variable with the names of plug-ins to load.
        parts: what may be asked for by name.
        limits: what it does not do in any version, one sentence; "" if nothing.
        alternatives: parts of which at most one may be asked for.
        literal_list: it takes the whitelist literally: blanks count, and an empty list names
            nothing. Other engines strip blanks, and treat an empty list as no list.
    """

    name: str
    distributions: tuple[str, ...]
    tested: tuple[str, ...]
    group: str
    switch: str
    whitelist: str
    parts: tuple[str, ...]
    limits: str = ""
    alternatives: tuple[str, ...] = ()
    literal_list: bool = False
    modes: tuple[Mode, ...] = ()

    def loads(self, environ: Mapping[str, str]) -> bool:
        """Whether its whitelist, if there is one, has our name."""
        text = environ.get(self.whitelist)
        if text is None or not (text or self.literal_list):
            return True
        return ENTRY_POINT in (text.split(",") if self.literal_list else _listed(text))


@dataclass(frozen=True)
class Decision:
    """Whether a plug-in is to be used in this process, and why not.

    Attributes:
        version: of the engine; None if it is not installed.
        wanted: the user asked for the plug-in.
        parts: the parts asked for by name; empty: the plug-in's own choice.
        refusal: why it is not used; "" if it is.
        fix: what to do about the refusal.
    """

    version: str | None
    wanted: bool
    parts: frozenset[str]
    refusal: str = ""
    fix: str = "none"

    @property
    def used(self) -> bool:
        """Whether the plug-in is used."""
        return not self.refusal


def decide(engine: Engine, environ: Mapping[str, str] = os.environ) -> Decision:
    """Decides by the switch, the whitelist and the version."""
    version = _installed(engine)
    text = environ.get(engine.switch, "").strip()
    listed = environ.get(engine.whitelist, "")
    wanted = text != "0" if text else ENTRY_POINT in _listed(listed)
    parts = frozenset(() if text in ("", "0", "1") else _listed(text))

    def refused(why: str, fix: str) -> Decision:
        return Decision(version, wanted, parts, why, fix)

    if version is None:
        here = f"install {engine.name} where moewire is, or export {engine.switch}=0"
        return refused("not installed", here if wanted else "none")
    if not wanted:
        how = "is 0" if text else "is not set"
        return refused(f"off: {engine.switch} {how}", f"export {engine.switch}=1")
    wrong = _wrong_parts(engine, text, parts)
    if wrong:
        return refused(f"{engine.switch}={text}: {wrong}", f"export {engine.switch}=1")
    if not engine.loads(environ):
        names = [name for name in _listed(listed) if name != ENTRY_POINT]
        both = ",".join([*names, ENTRY_POINT])
        why = f"{engine.whitelist}={listed!r} does not name {ENTRY_POINT}"
        if ENTRY_POINT in _listed(listed):
            why = f"{engine.whitelist}={listed!r}: {engine.name} takes blanks for part of a name"
        return refused(why, f"export {engine.whitelist}={both}")
    if version.partition("+")[0] not in engine.tested and environ.get(UNTESTED) != "1":
        tested = " and ".join(engine.tested)
        why = f"tested with {engine.name} {tested} only, not with {version}"
        other = environ.get(UNTESTED, "")
        if other not in ("", "0"):
            why += f"; {UNTESTED}={other} is not 1"
        return refused(why, f"export {UNTESTED}=1   (to try it all the same)")
    return Decision(version, wanted, parts)


def _wrong_parts(engine: Engine, text: str, parts: frozenset[str]) -> str:
    """What is wrong with the value of the switch; "" if nothing is."""
    unknown = ", ".join(sorted(parts.difference(engine.parts)))
    if unknown or not (parts or text in ("", "0", "1")):
        allowed = ", ".join(engine.parts)
        return f"{unknown or 'nothing'} given; allowed: 0, 1, or a comma list of {allowed}"
    both = [part for part in engine.alternatives if part in parts]
    return f"{' and '.join(both)} given; allowed: one of them" if len(both) > 1 else ""


def activate(engine: Engine, apply: Callable[[frozenset[str]], str]) -> Decision:
    """The body of an entry point: ``apply(parts)`` if the decision allows it. Idempotent.

    ``apply`` puts the plug-in in place and returns what it did, in words. Its exceptions are
    logged here and go on to the engine, which may end. Only ``UnsupportedError``, as on a device
    that Moewire does not serve, is a refusal: it is logged, and the engine runs as it is.
    """
    found = decide(engine)
    with _lock:
        if engine.name in _active:
            return found
        if not found.used:
            level = logging.ERROR if found.wanted else logging.INFO
            text = "%s runs without moewire: %s (fix: %s)"
            _log.log(level, text, engine.name, found.refusal, found.fix)
            return found
        try:
            done = apply(found.parts)
        except UnsupportedError as error:
            _log.error("%s runs without moewire: %s", engine.name, error)
            return replace(found, refusal=str(error))
        except Exception as error:
            _log.error("%s runs without moewire: %r", engine.name, error)
            raise
        _active[engine.name] = done
    # A warning: engines load plug-ins before they set up logging; lower levels are not shown then.
    limits = f" ({engine.limits})" if engine.limits else ""
    _log.warning("%s %s runs with moewire: %s%s", engine.name, found.version, done, limits)
    return found


def active(engine: Engine) -> str | None:
    """What ``activate`` put in place in this process; None: nothing."""
    return _active.get(engine.name)


def is_loaded_by(engine: Engine, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the engine is here and would load the plug-in, whatever that does then."""
    return _installed(engine) is not None and _has_entry_point(engine) and engine.loads(environ)


def report(engine: Engine, environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """For ``moewire doctor``: what the plug-in would do in a process started like this one."""
    found = decide(engine, environ)
    if found.version is None and not found.wanted:
        return {"version": None}
    refusal, fix = found.refusal, found.fix
    if found.version is not None and not _has_entry_point(engine):
        refusal = f"moewire's entry point in {engine.group} is not installed"
        fix = "pip install moewire   (or pip install -e . again, in the source tree)"
    answer: dict[str, object] = {
        "version": found.version,
        "tested_with": ", ".join(engine.tested),
        "asked_for": found.wanted,
        "plug_in": f"not used: {refusal}" if refusal else "would be used",
    }
    if refusal:
        answer["fix"] = fix
    if engine.modes and found.version is not None:
        why = "the plug-in is not used" if refusal else ""
        answer["modes"] = {one.name: _served(one, engine, found.parts, why) for one in engine.modes}
    return {**answer, "limits": engine.limits} if engine.limits else answer


def _served(mode: Mode, engine: Engine, parts: frozenset[str], refusal: str) -> str:
    """On which devices the plug-in would serve the mode, or why it would not."""
    by_name = f"{engine.switch} does not name {mode.part}"
    if not mode.part:
        refusal = mode.served
    elif refusal or mode.part in parts:
        pass
    elif parts or not mode.default:
        refusal = by_name
    elif mode.unless and _is_another(mode.unless):
        refusal = f"{mode.unless} is installed, and {by_name}"
    return f"not served: {refusal}" if refusal else f"served on {mode.served}"


def _is_another(module: str) -> bool:
    """Whether a module is installed, and not Moewire's own in this process."""
    spec = importlib.util.find_spec(module)
    return spec is not None and not str(spec.origin).startswith("moewire.")


def _installed(engine: Engine) -> str | None:
    for name in engine.distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _has_entry_point(engine: Engine) -> bool:
    return any(point.name == ENTRY_POINT for point in metadata.entry_points(group=engine.group))


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
