"""What ids of attempts are made of."""

from __future__ import annotations

import os

from holdfast.client.transport.clock import DRAWN_AT_ONCE, draw_entropy


def test_nothing_is_drawn_twice() -> None:
    drawn = [draw_entropy() for _ in range(3 * DRAWN_AT_ONCE)]
    assert len(set(drawn)) == len(drawn)
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in drawn)


def test_a_child_draws_other_ids_than_its_parent() -> None:
    draw_entropy()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, draw_entropy().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        theirs = pipe.read()
    os.waitpid(child, 0)
    assert len(theirs) == 32
    assert theirs not in {draw_entropy() for _ in range(2 * DRAWN_AT_ONCE)}
