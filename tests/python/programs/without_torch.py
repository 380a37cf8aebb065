"""Without torch, names that need it say what to install."""

import importlib
import sys

sys.modules["torch"] = None  # type: ignore[assignment]  # as if it were not there

import moewire  # noqa: E402
import moewire.compat.deep_ep  # noqa: E402
import moewire.compat.mooncake  # noqa: E402

moewire.compat.mooncake.install()
moewire.compat.deep_ep.install()

USES = {
    **{name: lambda name=name: getattr(moewire, name) for name in sorted(moewire._LAZY)},
    "autograd": lambda: importlib.import_module("moewire.autograd"),
    "deep_ep": lambda: importlib.import_module("moewire.deep_ep"),
    "mooncake": lambda: sys.modules["mooncake.mooncake_ep_buffer"].Buffer,
    "as deep_ep": lambda: sys.modules["deep_ep"].Buffer,
    "transformers": lambda: importlib.import_module("moewire.integrations.transformers"),
}
for name, use in USES.items():
    try:
        use()
    except ModuleNotFoundError as error:
        assert error.name == "torch" and "pip install 'moewire[torch]'" in str(error), (name, error)
    else:
        raise AssertionError(f"{name} was there without torch")
print("without torch: ok", len(USES))
