"""Laws of a client's own limit: what it may take, what it waits for, and what is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.server.gateway import ClientRates


@pytest.mark.parametrize("rate", [1, 3, 7, 10, 1000])
def test_a_client_may_take_one_second_at_once_and_then_its_rate(rate: int) -> None:
    rates = ClientRates(rate)
    now = 123_456.789
    taken = sum(rates.wait_for_one("a", now) == 0 for _ in range(2 * rate))
    assert taken == rate
    # In steps that the clock of an event loop makes: milliseconds.
    later = [now + (step + 1) / 1000 for step in range(10_000)]
    more = sum(rates.wait_for_one("a", instant) == 0 for instant in later)
    assert 10 * rate - 1 <= more <= 10 * rate
    rates.check()


def test_the_wait_that_is_told_is_enough_and_no_shorter_one_is() -> None:
    rates = ClientRates(4)
    for _ in range(4):
        assert rates.wait_for_one("a", 50.0) == 0
    wait = rates.wait_for_one("a", 50.0)
    assert wait == pytest.approx(0.25)
    assert rates.wait_for_one("a", 50.0 + wait - 0.001) > 0
    assert rates.wait_for_one("a", 50.0 + wait) == 0


def test_a_client_that_is_refused_is_not_punished_for_asking() -> None:
    rates = ClientRates(2)
    for _ in range(1000):
        rates.wait_for_one("a", 10.0)
    assert rates.wait_for_one("a", 10.5) == 0


def test_clients_do_not_share_a_budget() -> None:
    rates = ClientRates(1)
    assert rates.wait_for_one("a", 1.0) == 0
    assert rates.wait_for_one("a", 1.0) > 0
    assert rates.wait_for_one(b"a", 1.0) == 0


def test_a_stream_waits_for_what_it_takes_and_single_commits_share_its_budget() -> None:
    rates = ClientRates(100)
    assert rates.wait_after_taking("a", 100, 0.0) == 0
    assert rates.wait_after_taking("a", 50, 0.0) == pytest.approx(0.5)
    assert rates.wait_for_one("a", 0.0) == pytest.approx(0.51)
    assert rates.wait_for_one("a", 0.52) == 0


def test_at_the_bound_the_one_heard_least_recently_is_forgotten() -> None:
    rates = ClientRates(1, clients_max=2)
    for client in ("a", "b"):
        assert rates.wait_for_one(client, 5.0) == 0
    assert rates.wait_for_one("a", 5.0) > 0  # refused, and heard all the same
    assert rates.wait_for_one("c", 5.0) == 0
    assert len(rates) == 2
    assert rates.wait_for_one("a", 5.0) > 0, "it was heard after b"
    assert rates.wait_for_one("b", 5.0) == 0, "forgotten: its bucket is full"
    rates.check()


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 700)), max_size=200),
)
def test_no_client_ever_gets_more_than_its_rate_and_one_second(rate: int, asked: list[tuple[str, int]]) -> None:
    rates = ClientRates(rate)
    now_ms = 1_000_000
    taken: dict[str, list[int]] = {}
    for client, pause_ms in asked:
        now_ms += pause_ms
        if rates.wait_for_one(client, now_ms / 1000) == 0:
            taken.setdefault(client, []).append(now_ms)
    rates.check()
    for instants in taken.values():
        for first, begin in enumerate(instants):
            for last in range(first, len(instants)):
                allowed = rate * (1 + (instants[last] - begin) / 1000) + 0.001
                assert last - first + 1 <= allowed + 1e-6
