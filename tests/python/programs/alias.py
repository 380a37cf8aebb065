"""The aliases, with or without the real thing installed. argv: mooncake or deep_ep, real or not."""

import importlib
import importlib.util
import logging
import sys

import moewire

NAMES = {"mooncake": "mooncake.mooncake_ep_buffer", "deep_ep": "deep_ep"}
LIBRARY, KIND = sys.argv[1:]
NAME = NAMES[LIBRARY]
compat = importlib.import_module(f"moewire.compat.{LIBRARY}")

records: list[str] = []
handler = logging.Handler()
handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
logging.getLogger("moewire").addHandler(handler)

if KIND == "real":
    assert importlib.import_module(NAME).Buffer == "the real one"
assert not compat.is_installed()
compat.install()
compat.install()
assert compat.is_installed()
assert len(records) == 1 and NAME in records[0], records
assert "torch" not in sys.modules
# How clients ask whether there is such a module.
assert importlib.util.find_spec(NAME) is not None

leaf = importlib.import_module(NAME)


def mooncake() -> None:
    import mooncake.mooncake_ep_buffer
    from mooncake import mooncake_ep_buffer
    from mooncake.mooncake_ep_buffer import Buffer, EventOverlap

    from moewire.compat import _mooncake as ours

    assert Buffer is ours.Buffer and EventOverlap is moewire.EventOverlap
    assert issubclass(Buffer, moewire.Buffer)
    assert mooncake_ep_buffer is mooncake.mooncake_ep_buffer is leaf
    if KIND == "real":
        assert importlib.import_module("mooncake.other").VALUE == 7
        return
    try:
        importlib.import_module("mooncake.other")
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError("mooncake.other exists")


def deep_ep() -> None:
    import torch
    from deep_ep import Buffer, Config, EventHandle, EventOverlap, topk_idx_t

    import moewire.deep_ep as ours

    assert Buffer is ours.Buffer and Config is ours.Config and EventHandle is ours.EventHandle
    assert EventOverlap is moewire.EventOverlap and topk_idx_t is torch.int64
    assert leaf.__version__ == moewire.__version__
    import deep_ep.utils
    from deep_ep.utils import EventHandle as Handle
    from deep_ep.utils import EventOverlap as Overlap

    assert Handle is EventHandle and Overlap is EventOverlap and leaf.utils is deep_ep.utils
    assert importlib.util.find_spec("deep_ep.utils") is not None
    names: dict[str, object] = {}
    exec("from deep_ep import *", names)
    assert names["Buffer"] is Buffer and names["ElasticBuffer"] is not Buffer


def refuses(name: str, *words: str) -> None:
    assert not hasattr(leaf, name)
    try:
        getattr(leaf, name)
    except AttributeError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"{name} exists")


{"mooncake": mooncake, "deep_ep": deep_ep}[LIBRARY]()
refuses("nothing", NAME, "nothing")
print("aliased")
