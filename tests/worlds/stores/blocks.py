"""Worlds with small blocks and steps, so that every border is crossed within a few messages.

The number of messages in a block is a constant of the code. A process that wants another one sets it here, before it
imports the modules that use it.
"""

from __future__ import annotations

import sys

from holdfast.stores.values import ports

__all__ = ["block_messages", "set_block_messages"]

USERS = ("holdfast.stores.values.reference_counts", "tests.worlds.stores.shape")
"""The first modules that take the constant."""


def block_messages() -> int:
    """The number of messages in a block of this process."""
    return ports.BLOCK_MESSAGES


def set_block_messages(count: int) -> None:
    """Give blocks ``count`` messages, in this process and before the state machine is imported."""
    if count != ports.BLOCK_MESSAGES:
        assert not any(name in sys.modules for name in USERS), "the size of blocks is set before anything uses it"
        setattr(ports, "BLOCK_MESSAGES", count)  # noqa: B010  # a constant for every other user
        from holdfast.stores.durables import keyed  # it copies the size of blocks
        from holdfast.stores.values import deadlines

        keyed.STEP_ENTRIES = max(1, count // 2)
        deadlines.DISCARD_LOOKS = max(1, count // 2)
