"""hatchling's build hook: puts libmoewire.so into the wheel.

Requirements that are large (Go, a C compiler) are asked for only where the
machine has none; see build_library.py for the decision.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _load_build_library() -> Any:
    # hatchling loads this file by its path, without its folder on sys.path.
    name = "moewire_build_library"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, Path(__file__).with_name("build_library.py")
        )
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


build_library = _load_build_library()


class LibraryHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the library once per wheel, editable or not."""

    _scratch: str | None = None

    def dependencies(self) -> list[str]:
        requirements: list[str] = build_library.make_plan(os.environ).requirements
        return requirements

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        plan = build_library.make_plan(os.environ)
        if version == "editable":
            # The package is used from the tree, so the library goes there.
            out = Path(self.root) / "python" / "moewire" / build_library.LIBRARY
        else:
            # The tree stays as it is: its library may be in use.
            self._scratch = tempfile.mkdtemp(prefix="moewire-wheel-")
            out = Path(self._scratch) / build_library.LIBRARY
            build_data["force_include"][str(out)] = f"moewire/{build_library.LIBRARY}"
        build_library.build(plan, self.metadata.version, out)
        if self._scratch is not None:
            listed = Path(self._scratch) / build_library.sibling("sbom").NAME
            listed.write_text(build_library.bill_of_materials(plan, self.metadata.version, out))
            build_data["sbom_files"].append(str(listed))
        build_data["pure_python"] = False
        build_data["tag"] = plan.tag

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
