"""A fingerprint of a model's weights: what tells apart two models of one name.

Files are sampled, since reading all of a large model again would take minutes: each file's name and
size, and of its content what ``_samples`` says. A fine-tune often leaves the first and the last
tensor of a file as they were, so samples lie all over it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from ....errors import InvalidArgument

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SETTINGS = (".json",)  # config.json, and quantisation's; never the tokenizer's
_SAMPLE = 4096  # bytes
_SAMPLES = 4096  # of all files together
_WHOLE = 1 << 20  # a file of this size or less is read whole


def of_files(place: Path) -> str:
    """Of a folder's files, or of one file. Names count, the place itself does not.

    Raises:
        InvalidArgument: no weights lie there.
    """
    files = [place] if place.is_file() else sorted(_listed(place))
    if not any(file.suffix in WEIGHTS for file in files):
        raise InvalidArgument(f"no weights ({', '.join(WEIGHTS)}) in {place}")
    sizes = [file.stat().st_size for file in files]
    step = max(_SAMPLE, sum(sizes) // _SAMPLES)
    digest = hashlib.sha256(b"moewire weights 1")
    for file, size in zip(files, sizes, strict=True):
        name = file.name.encode()
        digest.update(b"%d %b %d " % (len(name), name, size))
        for sample in _samples(file, size, step):
            digest.update(sample)
    return digest.hexdigest()


def _listed(folder: Path) -> Iterator[Path]:
    for file in folder.iterdir():
        ours = file.suffix in (*WEIGHTS, *_SETTINGS) and "tokenizer" not in file.name
        if ours and file.is_file():
            yield file


def _samples(file: Path, size: int, step: int) -> Iterator[bytes]:
    """All of a small file; of another one a sample every ``step`` bytes, and its end."""
    with file.open("rb") as content:
        if size <= max(_WHOLE, _SAMPLE):
            yield content.read()
            return
        for begin in range(0, size - _SAMPLE, step):
            content.seek(begin)
            yield content.read(_SAMPLE)
        content.seek(size - _SAMPLE)
        yield content.read()


def joined(*parts: str) -> str:
    """One fingerprint of several parts, in their order."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode()
        digest.update(b"%d " % len(content))
        digest.update(content)
    return digest.hexdigest()
