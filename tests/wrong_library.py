"""A library with a mistake: every combine of a buffer has one wrong bit.

It shows that the oracle, the demo and the tests of engines can fail. The mistake is an edit of
the sources that only this build sees. It is there for the buffers that are made while the
variable MOEWIRE_TEST_CORRUPT is set.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# File, a text that is in it exactly once, and what comes behind it.
EDITS = (
    ("core/ep/config.go", "type Config struct {\n", "\tCorruptCombine bool\n"),
    (
        "core/ep/cpu/combine.go",
        "\tif !b.isMember() {\n\t\treturn ep.ErrFenced\n\t}\n",
        "\tif b.cfg.CorruptCombine && c.args.NumTokens > 0 {\n\t\tc.args.Out[0] ^= 1\n\t}\n",
    ),
    ("capi/config.go", '// #include "internal.h"\n', "// #include <stdlib.h>\n"),
    (
        "capi/config.go",
        "\t\tConfig: ep.Config{\n",
        '\t\t\tCorruptCombine: C.getenv(C.CString("MOEWIRE_TEST_CORRUPT")) != nil,\n',
    ),
)


def build(out: Path) -> None:
    """Builds it."""
    spec = importlib.util.spec_from_file_location(
        "build_library", ROOT / "wheels" / "build_library.py"
    )
    assert spec is not None and spec.loader is not None
    build_library = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = build_library
    spec.loader.exec_module(build_library)
    texts: dict[str, str] = {}
    for name, text, more in EDITS:
        before = texts.get(name) or (ROOT / name).read_text()
        assert before.count(text) == 1, f"{name} has {before.count(text)} times {text!r}"
        texts[name] = before.replace(text, text + more)
    with tempfile.TemporaryDirectory() as folder:
        instead = {}
        for number, (name, text) in enumerate(texts.items()):
            edited = Path(folder) / f"{number}.go"
            edited.write_text(text)
            instead[ROOT / name] = edited
        plan = build_library.make_plan(os.environ)
        build_library.build(plan, build_library.read_version(), out, instead)


def library() -> str:
    """Its path. It is built again when the tree's own library is newer, or this file."""
    out = ROOT / "build" / "tests" / "wrong" / "libmoewire.so"
    own = Path(os.environ.get("MOEWIRE_LIBRARY") or ROOT / "python" / "moewire" / "libmoewire.so")
    out.parent.mkdir(parents=True, exist_ok=True)
    with (out.parent / "lock").open("w") as lock:  # of test runs at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(own.stat().st_mtime, Path(__file__).stat().st_mtime)
        if not out.is_file() or out.stat().st_mtime < newest:
            build(out)
    return str(out)
