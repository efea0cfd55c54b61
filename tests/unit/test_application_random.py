"""An application that seeded ``random`` gets the numbers that it would get without us."""

from __future__ import annotations

import random

from holdfast.client.protocol.effects import Wait
from holdfast.client.transport.clock import draw_wait_ms
from holdfast.objects.memory import MemoryStore
from holdfast.objects.retrying import RetryingReader


def test_jitter_takes_no_number_of_the_application() -> None:
    random.seed(7)
    expected = random.random()
    random.seed(7)
    assert 1 <= draw_wait_ms(Wait(1, 5, "")) <= 5
    assert 0 <= RetryingReader(MemoryStore())._draw() < 1
    assert random.random() == expected
