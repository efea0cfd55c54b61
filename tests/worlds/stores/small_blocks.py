"""Worlds with blocks of 4 messages and small steps, so that every border is crossed within a few messages.

The number of messages in a block is a constant of the code. A process that imports this module first has this one.
"""

from __future__ import annotations

import sys
from typing import Final

from tests.worlds.harness import Kind

from holdfast.stores.values import ports

BLOCK_MESSAGES: Final = 4

USERS = ("holdfast.stores.values.reference_counts", "tests.worlds.stores.shape")
assert not any(name in sys.modules for name in USERS), "the size of blocks is set before anything uses it"
setattr(ports, "BLOCK_MESSAGES", BLOCK_MESSAGES)  # noqa: B010  # a constant for every other user

from holdfast.stores.durables import expiry, keyed  # noqa: E402
from holdfast.stores.values import deadlines  # noqa: E402

expiry.EXPIRE_LOOKS = keyed.STEP_ENTRIES = deadlines.DISCARD_LOOKS = BLOCK_MESSAGES // 2

from tests.worlds.stores.kinds import EVENTS  # noqa: E402
from tests.worlds.stores.mutants import SMALL_BLOCK_MUTANTS  # noqa: E402
from tests.worlds.stores.world import run_world  # noqa: E402

__all__ = ["KINDS"]

KINDS: Final = {"stores-small-blocks": Kind(run_world, "crash states", EVENTS, 300, SMALL_BLOCK_MUTANTS)}
