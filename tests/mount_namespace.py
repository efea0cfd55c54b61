"""Where a test may mount a small file system that ends with its process."""

from __future__ import annotations

import functools
import subprocess
from typing import Final

import pytest

__all__ = ["mount_namespace"]

# Root needs no namespace of users, and inside a changed root directory nobody gets one.
_WAYS: Final = (["unshare", "-m"], ["unshare", "-Urm"])


@functools.cache
def mount_namespace() -> list[str]:
    """What to put before a command. Skips the test where the machine allows no such namespace."""
    for way in _WAYS:
        mounts = [*way, "mount", "-t", "tmpfs", "none", "/mnt"]
        if subprocess.run(mounts, capture_output=True, check=False, timeout=20).returncode == 0:
            return way
    pytest.skip("this machine allows no mount namespace")
