"""Makes the helpers beside this file importable, here and in the ranks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
if importlib.util.find_spec("moewire") is None:
    sys.path.insert(0, str(HERE.parents[1] / "python"))
