"""Where a test may have a network of its own, in which the same address is another place."""

from __future__ import annotations

import functools
import subprocess
from typing import Final

import pytest

__all__ = ["network_namespace"]

_LOOPBACK_UP: Final = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
# Root needs no namespace of users, and inside a changed root directory nobody gets one.
_WAYS: Final = (["unshare", "-n", *_LOOPBACK_UP], ["unshare", "-Urn", *_LOOPBACK_UP])


@functools.cache
def network_namespace() -> list[str]:
    """What to put before a command. Skips the test where the machine allows no such namespace."""
    for way in _WAYS:
        if subprocess.run([*way, "true"], capture_output=True, check=False, timeout=20).returncode == 0:
            return way
    pytest.skip("this machine allows no network namespace")
