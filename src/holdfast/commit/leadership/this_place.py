"""Where the addresses of this process are valid.

Owns: reading the boot id of the machine and the namespaces of the process. Does not own: what follows from two places
being one (``takeover_machine``).

The same text, 127.0.0.1:8080 say, is another address in each container. A namespace lives as long as a process in it,
and its inode is not used again before; so two processes with one boot id and one namespace share their addresses.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from uuid import UUID

from holdfast.commit.format.batch import UNKNOWN_PLACE, Place

__all__ = ["this_place"]

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
NETWORK: Final = "/proc/self/ns/net"
MOUNTS: Final = "/proc/self/ns/mnt"


def this_place(address: str) -> Place:
    """The place in which ``address`` is valid for this process; unknown where the system does not tell."""
    if not address:
        return UNKNOWN_PLACE
    try:
        boot_id = UUID(BOOT_ID.read_text().strip()).bytes
        namespace = os.stat(MOUNTS if address.startswith("unix:") else NETWORK).st_ino
    except (OSError, ValueError):
        return UNKNOWN_PLACE
    return Place(boot_id, namespace)
