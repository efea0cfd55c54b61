"""The wheel in an environment without any other package: what works there works, and the rest names its extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path
from typing import Final

import pytest

import holdfast

ROOT: Final = Path(__file__).resolve().parents[2]
CLIENT: Final = "pip install 'holdfastdb[client]'"
SERVER: Final = "pip install 'holdfastdb[server]'"
SPARK: Final = "pip install 'holdfastdb[spark]'"
CLIENT_NAMES: Final = (
    *("Client", "ClientOptions", "StoreClient", "View"),
    *(
        "Delete",
        "JobChange",
        "Operation",
        "PointRead",
        "Precondition",
        "RangeDelete",
        "RangeRead",
        "Transaction",
        "Write",
    ),
)
AIO_CLIENT_NAMES: Final = ("AsyncTransaction", "Client", "ClientOptions", "StoreClient", "Subscription", "Transacted")
SPARK_NAMES: Final = ("HoldfastDataSource", "session", "read_log", "materialise_latest")
PLAIN: Final = (
    "import holdfast; holdfast.Queue, holdfast.every, holdfast.HoldfastError, holdfast.MissingExtra, holdfast.aio",
    "import holdfast.errors, holdfast.extras",
    "from holdfast.queue import Block, Gap, Message, Queue, Serializer, SyncLevel, Trimmed, every",
    "from holdfast.aio import Queue",
    "from holdfast.settings import Settings, load_configuration",
)
"""What needs the standard library alone."""
NEEDS: Final = {
    **{f"from holdfast import {name}": CLIENT for name in CLIENT_NAMES},
    **{f"from holdfast.aio import {name}": CLIENT for name in AIO_CLIENT_NAMES},
    "import holdfast.client": CLIENT,
    "from holdfast.client.stores import StoreClient": CLIENT,
    "from holdfast.client.aio.stores import StoreClient": CLIENT,
    "from holdfast.view import View": CLIENT,
    "import holdfast.spark": SPARK,
    **{f"from holdfast.spark import {name}": SPARK for name in SPARK_NAMES},
    "from holdfast.spark import Latest": SPARK,
    "from holdfast.spark.bulk.load import load_requests": SPARK,
    "import pyspark_holdfast": SPARK,
}
COMMANDS: Final = {
    "get k": CLIENT,
    "queue info log": CLIENT,
    "stores ls": CLIENT,
    "--help": CLIENT,
    "": CLIENT,
    "serve": SERVER,
    "log ls file:///log": SERVER,
    "check-config": SERVER,
    "spark doctor": "pip install 'holdfastdb[spark,client]'",
}


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel and nothing else."""

    wheel: Path
    bin: Path
    away: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        # Not from the source tree, and without the test's own paths.
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]], cwd=self.away, env={}, capture_output=True, text=True, timeout=60
        )

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        return self.run("python", "-c", code)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    home = folder / "env"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    # "--python" is of pip 22.3: no pip is needed within.
    install = ["pip", "--python", str(python), "install", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", *install, str(wheel)], check=True, capture_output=True, timeout=120)
    return Installed(wheel, home / "bin", folder)


def test_the_wheel_has_the_name_of_the_distribution_and_the_version_of_the_package(installed: Installed) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert installed.wheel.name == f"holdfastdb-{holdfast.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(installed.wheel) as archive:
        metadata = message_from_bytes(archive.read(f"holdfastdb-{holdfast.__version__}.dist-info/METADATA"))
    assert (metadata["Name"], metadata["Version"]) == (project["name"], project["version"])
    assert set(metadata.get_all("Provides-Extra") or ()) == set(project["optional-dependencies"])
    needed = [line for line in metadata.get_all("Requires-Dist") or () if "extra ==" not in line]
    assert needed == [], "the package itself needs the standard library alone"


def test_no_extra_asks_for_the_other_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, lines in project["optional-dependencies"].items():
        assert not [line for line in lines if line.startswith("holdfast") and not line.startswith("holdfastdb[")], extra


@pytest.mark.parametrize("code", PLAIN)
def test_what_needs_the_standard_library_alone_is_imported(installed: Installed, code: str) -> None:
    done = installed.python(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_queue_works_without_any_package(installed: Installed) -> None:
    code = (
        "from holdfast import Queue\n"
        "with Queue('data/log') as queue:\n"
        "    queue.append_many([b'one', b'two'])\n"
        "    print([message.payload for message in queue.read()])\n"
    )
    done = installed.python(code)
    assert (done.stdout, done.stderr) == ("[b'one', b'two']\n", "")


@pytest.mark.parametrize("code", NEEDS)
def test_an_import_without_its_extra_names_the_command_that_installs_it(installed: Installed, code: str) -> None:
    done = installed.python(code)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("holdfast.extras.MissingExtra: this part of holdfast needs a package that is not installed")
    assert last.endswith(f"; {NEEDS[code]}")


def test_a_configuration_in_yaml_names_the_extra_and_one_in_toml_needs_none(installed: Installed) -> None:
    (installed.away / "a.toml").write_text("[log]\nurl = 'memory:'\n")
    (installed.away / "a.yaml").write_text("log: {url: 'memory:'}\n")
    (installed.away / "wrong.json").write_text('{"log": {"ur": 1}}')
    code = (
        "from pathlib import Path; from holdfast import load_configuration;"
        "print(load_configuration(file=Path(%r), environ={}).settings.log.url)"
    )
    assert installed.python(code % "a.toml").stdout == "memory:\n"
    assert installed.python(code % "a.yaml").stderr.strip().endswith(f"; {SERVER}")
    assert "log.ur" in installed.python(code % "wrong.json").stderr.strip().splitlines()[-1], "told without its line"


def test_a_missing_extra_can_be_caught_as_an_import_error(installed: Installed) -> None:
    code = (
        "import pickle, copy, holdfast\n"
        "try:\n"
        "    holdfast.Client\n"
        "except ImportError as error:\n"
        "    assert isinstance(error, ModuleNotFoundError) and isinstance(error, holdfast.HoldfastError)\n"
        "    again = pickle.loads(pickle.dumps(error))\n"
        "    assert str(again) == str(error) == str(copy.copy(error))\n"
        "    print(error.extra, error.name, error.code)\n"
    )
    done = installed.python(code)
    assert (done.stdout, done.stderr) == ("client msgspec bad_configuration\n", "")


def test_the_version_is_printed_without_any_package(installed: Installed) -> None:
    done = installed.run("holdfast", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"holdfast {holdfast.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_its_extra_names_the_command_that_installs_it(installed: Installed, command: str) -> None:
    done = installed.run("holdfast", *command.split())
    assert done.returncode == 2
    first, hint = done.stderr.splitlines()
    assert first.startswith("holdfast: this part of holdfast needs a package that is not installed package=")
    assert hint == f"  hint: {COMMANDS[command]}"
    assert done.stdout == ""


def test_every_public_name_is_tried(installed: Installed) -> None:
    code = (
        "import holdfast\n"
        "print(*holdfast.__all__)\n"
        "for name in holdfast.__all__:\n"
        "    try:\n"
        "        exec(f'from holdfast import {name}')\n"
        "    except holdfast.MissingExtra:\n"
        "        continue\n"
        "    print(name, end=' ')\n"
    )
    every, plain = (set(line.split()) for line in installed.python(code).stdout.splitlines())
    assert every - plain == {*CLIENT_NAMES}
    assert {"Queue", "aio", "HoldfastError", "MissingExtra"} <= plain
