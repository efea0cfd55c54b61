"""The tutorials that need a service: each run from an empty directory in one shell, and it prints what the page says.

A block of ``text`` behind commands or a program is what they print; ``...`` in it stands for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.matrix import matrix
from tests.rgw import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("commit-log.md", "stores.md", "exactly-once.md", "two-runtimes.md", "three-machines.md")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "--- block {} ---"
ADDRESS, SECOND_ADDRESS = "127.0.0.1:8080", "127.0.0.1:8081"
SECONDS_MAX = 400


def script_of(blocks: list[tuple[str, str]]) -> str:
    """All blocks in one shell, as a reader would type them; programs are run as a reader would."""
    lines = ["trap 'kill -9 $(jobs -p) 2> /dev/null || true' EXIT", "trap 'exit 124' TERM", "set -e"]
    for number, (language, block) in enumerate(blocks):
        lines.append(f"echo; echo '{MARK.format(number)}'")
        lines.append(f"python - <<'END'\n{block}END" if language == "python" else block.rstrip())
    return "\n".join(lines) + "\n"


def matches(printed: str, said: str) -> bool:
    """Whether the text is what the page says, line ends at the edges aside."""
    pattern = ".*?".join(map(re.escape, said.strip("\n").split("...")))
    return re.fullmatch(pattern, printed.strip("\n"), re.DOTALL) is not None


@pytest.mark.matrix
@pytest.mark.timeout(SECONDS_MAX + 20)
@pytest.mark.parametrize("page", matrix(PAGES))
def test_every_command_of_the_tutorial_runs_and_prints_what_it_says(page: str, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    found = FENCE.findall((ROOT / "docs" / "tutorial" / page).read_text(encoding="utf-8"))
    assert {language for language, _ in found} <= {"sh", "python", "text"}
    second = f"127.0.0.1:{free_port()}"
    blocks = [
        (language, block.replace(ADDRESS, address).replace(SECOND_ADDRESS, second))
        for language, block in found
        if language != "text"
    ]
    # The shell's own trap ends what it started; ``timeout`` asks the shell first, so that it can.
    done = subprocess.run(
        ["timeout", "--kill-after=10", str(SECONDS_MAX), "bash", "-c", script_of(blocks)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOLDFAST_URL": f"http://{address}",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "server.log").read_text()
    printed = re.split(r"^--- block \d+ ---$", done.stdout, flags=re.MULTILINE)[1:]
    assert len(printed) == len(blocks)
    number = -1
    compared = 0
    for language, block in found:
        if language != "text":
            number += 1
        else:
            assert matches(printed[number], block), f"the page says:\n{block}\nbut it printed:\n{printed[number]}"
            compared += 1
    assert compared == len(blocks), "every block says what it prints"


def test_the_tour_of_the_readme_runs(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## A tour")[2].partition("\n## ")[0]
    blocks = [
        (language, block.replace(ADDRESS, address).replace("/tmp/holdfast-tour", f"{tmp_path}/tour"))
        for language, block in FENCE.findall(section)
    ]
    script = (
        script_of(blocks).replace("set -e", "").replace(MARK.format(2), f"{MARK.format(2)}'; kill %1; wait %1; echo '")
    )
    done = subprocess.run(
        ["timeout", "--kill-after=10", str(SECONDS_MAX), "bash", "-c", script],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOLDFAST_URL": f"http://{address}",
            "HOLDFAST_SERVER__LISTEN": address,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    printed = re.split(r"^--- block \d+ ---$", done.stdout, flags=re.MULTILINE)[1:]
    assert len(printed) == 3, done.stdout + done.stderr
    assert matches(
        printed[1],
        "...committed ...\ncommitted ...\nnot committed: conflict, read again from version ...\nann"
        "seat/12A = ann  @...\nseat/12B = free  @...\n...\n    write seat/12A = free\n    write seat/12B = free",
    ), done.stdout + done.stderr
    assert printed[2].count("write seat/12A = ann") == 1, done.stdout + done.stderr
    assert "seat/12A = bob" not in printed[2], "a refused transaction is not in the log"
