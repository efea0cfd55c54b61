"""How late the view is, over the versions that a change of leader leaves unused."""

from __future__ import annotations

import pytest

from holdfast.server.metrics import view_lag

JUMP = 100_000_000
LAST = 5_000
BASE = LAST + JUMP


@pytest.mark.parametrize(
    ("durable", "shown", "lag"),
    [
        (BASE, LAST, 0),
        (BASE, LAST - 7, 7),
        (BASE + 3, LAST, 3),
        (BASE + 3, LAST - 7, 10),
        (BASE + 3, BASE, 3),
        (BASE + 3, BASE + 3, 0),
        (BASE + 3, BASE + 4, 0),
        (BASE, LAST + 2, 0),
    ],
)
def test_a_change_of_leader_makes_no_view_late(durable: int, shown: int, lag: int) -> None:
    assert view_lag(durable, shown, base=BASE, before=LAST) == lag
