"""When an idle leader shows signs of life in the log."""

from __future__ import annotations

from itertools import pairwise

from holdfast.commit.leadership.claims import (
    FAST_MS,
    FORGOTTEN_MS,
    SLOW_EVERY_MS,
    STANDBYS_MAX,
    Heartbeat,
    encode_proof,
    parse_proof,
)
from holdfast.values import Slot

SILENCE_MS, HEARTBEAT_MS = 2_000.0, 500.0
MISSED_MS = SILENCE_MS / 2


def heartbeat() -> Heartbeat:
    return Heartbeat(silence_ms=SILENCE_MS, heartbeat_ms=HEARTBEAT_MS)


def beats(heart: Heartbeat, from_ms: float, until_ms: float) -> list[float]:
    """When a driver that looks exactly in time writes."""
    written: list[float] = []
    now_ms = from_ms
    while (due_ms := heart.next_ms(now_ms)) is not None and due_ms < until_ms:
        now_ms = max(now_ms, due_ms)
        assert heart.due(now_ms)
        heart.written(now_ms)
        written.append(now_ms)
    return written


def test_without_a_standby_nothing_is_written() -> None:
    assert heartbeat().next_ms(0) is None


def test_while_questions_arrive_nothing_is_written() -> None:
    heart = heartbeat()
    for ms in range(0, 600_000, int(HEARTBEAT_MS)):
        heart.asked("a", ms)
        assert not heart.due(ms + HEARTBEAT_MS)


def test_after_a_missed_question_heartbeats_are_frequent_for_a_minute_then_few_for_a_day_and_then_over() -> None:
    heart = heartbeat()
    heart.asked("a", 0)
    written = beats(heart, 0, 2 * FORGOTTEN_MS)
    assert written[0] == MISSED_MS
    fast = [ms for ms in written if ms <= 60_000 + MISSED_MS]
    assert {b - a for a, b in pairwise(fast)} == {HEARTBEAT_MS}
    slow = [ms for ms in written if ms >= MISSED_MS + FAST_MS]
    assert {b - a for a, b in pairwise(slow)} == {SLOW_EVERY_MS}
    assert len(written) < 122 + FORGOTTEN_MS / SLOW_EVERY_MS
    assert FORGOTTEN_MS - SLOW_EVERY_MS <= written[-1] <= FORGOTTEN_MS + MISSED_MS
    assert heart.next_ms(written[-1] + SLOW_EVERY_MS) is None


def test_a_batch_is_as_good_a_sign_of_life_as_a_heartbeat() -> None:
    heart = heartbeat()
    heart.asked("a", 0)
    heart.written(MISSED_MS - 1)
    assert heart.next_ms(MISSED_MS) == MISSED_MS - 1 + HEARTBEAT_MS


def test_a_standby_that_asks_again_ends_its_own_heartbeats_and_no_others() -> None:
    heart = heartbeat()
    heart.asked("a", 0)
    heart.asked("b", 0)
    heart.asked("a", 900)
    assert heart.due(MISSED_MS)
    heart.asked("b", MISSED_MS)
    assert not heart.due(MISSED_MS)


def test_beyond_the_bound_standbys_are_counted_as_one() -> None:
    heart = heartbeat()
    for number in range(STANDBYS_MAX + 10):
        heart.asked(f"standby-{number}", 0)
    for number in range(STANDBYS_MAX + 1):
        heart.asked(f"standby-{number}", 900)
    assert not heart.due(MISSED_MS)


def test_a_proof_is_a_slot_and_a_nonce_and_any_other_text_is_none() -> None:
    slot, nonce = Slot(2**64 - 1), bytes(range(16))
    assert parse_proof(encode_proof(slot, nonce)) == (slot, nonce)
    text = encode_proof(slot, nonce)
    altered = (text + "0", text[:-1], text.upper(), text + "\n", "1" + text, "\u0661" + text[1:])
    for wrong in ("", f"-1:{nonce.hex()}", f"{2**64}:{nonce.hex()}", *altered):
        assert parse_proof(wrong) is None, wrong
