"""The file ``clock.json``, from which the next start learns how much time has passed.

Owns: its format, reading and writing it. Does not own: what is made of it (``clock``).

Format: ``{"store_ms": t, "boot": name, "counts_ms": [a, b], "aim_ms": d}``: the stores' time, the run of the kernel,
how long that had lasted by its clock and by its uptime, and by how much the stores' time was to change from there.

Failure model: the file is replaced whole and synced. One that cannot be read counts as one of another boot with the
time 0; one that could not be written counts as one of another boot, when its time comes.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from holdfast.private_files import private

__all__ = ["ANCHOR_NAME", "Anchor", "read_anchor", "write_anchor"]

ANCHOR_NAME: Final = "clock.json"
SIZE_MAX: Final = 4_096


class Anchor(msgspec.Struct, frozen=True):
    """One moment, by the stores' time and by the kernel's counts. ``boot`` is "" where it was not known."""

    store_ms: int
    boot: str
    counts_ms: tuple[int, int]
    aim_ms: int = 0


def read_anchor(directory: str) -> Anchor | None:
    """None where there is none, as older code left it."""
    try:
        with open(os.path.join(directory, ANCHOR_NAME), "rb") as file:
            return msgspec.json.decode(file.read(SIZE_MAX), type=Anchor)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError):
        return Anchor(0, "", (0, 0))


def write_anchor(directory: str, anchor: Anchor) -> None:
    """*Raises*: ``OSError``, and the old one is there. *Cost*: one sync."""
    path = os.path.join(directory, ANCHOR_NAME)
    unfinished = path + ".new"
    with open(unfinished, "wb", opener=private) as file:
        file.write(msgspec.json.encode(anchor))
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
