"""Stores that live in the log, on a machine whose disk fills up: it refuses publishes, and the log goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.mount_namespace import mount_namespace

STORIES = Path(__file__).parent / "full_disk_stories.py"


def tell(directory: Path, story: str) -> dict[str, Any]:
    """Run a story in a mount namespace of its own, so that its file system ends with it."""
    found = subprocess.run(
        [*mount_namespace(), sys.executable, str(STORIES), str(directory), story],
        stdout=subprocess.PIPE,
        timeout=110,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    happened: dict[str, Any] = json.loads(found.stdout)
    return happened
