"""What streams hold for peers that take nothing: bounded for a client and for all, the largest one ends."""

from __future__ import annotations

import random

from holdfast.errors import Code, Unavailable
from holdfast.server.http.auth import ClientKey
from holdfast.server.http.buffers import CLIENT_PART, LEAVING_PART, MARK_BYTES, Buffers

UNIT = MARK_BYTES
BOUND = 64 * UNIT
PART = BOUND // CLIENT_PART


class Stream:
    def __init__(self, buffers: Buffers, client: ClientKey) -> None:
        self.buffers, self.client = buffers, client
        self.bytes = 0
        self.problem: Unavailable | None = None
        self.is_aborted = False

    def hold(self, size: int) -> None:
        self.bytes = size
        self.buffers.count(self.client, self, size)

    def held_bytes(self) -> int:
        return self.bytes

    def end_lagging(self, problem: Unavailable) -> None:
        assert self.problem is None, "a stream ends once"
        self.problem = problem

    def abort(self) -> None:
        self.is_aborted = True

    @property
    def goes_on(self) -> bool:
        return self.problem is None and not self.is_aborted


def test_the_stream_with_the_most_bytes_ends_and_the_others_of_its_client_stay() -> None:
    buffers = Buffers(BOUND)
    small, large, foreign = Stream(buffers, "a"), Stream(buffers, "a"), Stream(buffers, "b")
    foreign.hold(PART)
    large.hold(PART - 4 * UNIT)
    small.hold(4 * UNIT)
    assert [each.goes_on for each in (small, large, foreign)] == [True] * 3
    small.hold(5 * UNIT)
    assert large.problem is not None and large.problem.code is Code.LAGGING
    assert [each.goes_on for each in (small, large, foreign)] == [True, False, True]
    assert buffers.ended == 1
    buffers.check()


def test_what_was_taken_meanwhile_does_not_end_a_stream() -> None:
    buffers = Buffers(BOUND)
    quick, other = Stream(buffers, "a"), Stream(buffers, "a")
    quick.hold(PART)
    quick.bytes = 0  # its peer has taken it, and nothing was written since
    other.hold(PART)
    assert [quick.goes_on, other.goes_on] == [True, True]
    buffers.check()


def test_at_the_bound_of_the_service_the_client_that_holds_most_pays() -> None:
    buffers = Buffers(BOUND)
    streams = [Stream(buffers, str(number)) for number in range(CLIENT_PART + 1)]
    for stream in streams[:-1]:
        stream.hold(PART - UNIT)
    streams[0].hold(PART)
    streams[-1].hold(CLIENT_PART * UNIT)
    assert [stream.goes_on for stream in streams] == [False] + [True] * CLIENT_PART
    buffers.check()


def test_a_peer_that_takes_no_last_words_is_cut_off_where_many_leave() -> None:
    buffers = Buffers(BOUND)
    streams = [Stream(buffers, "a") for _ in range(40)]
    for stream in streams:
        stream.hold(PART // 8)
    ended = [stream for stream in streams if stream.problem is not None]
    leaving = [stream for stream in ended if not stream.is_aborted]
    assert len(ended) >= 40 - 8
    assert sum(stream.bytes for stream in leaving) <= PART // LEAVING_PART
    assert leaving == ended[-len(leaving) :], "the oldest goes first"
    buffers.check()


def test_what_all_streams_hold_is_bounded_whatever_they_report() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        buffers = Buffers(BOUND)
        streams = [Stream(buffers, chance.choice("abcdef")) for _ in range(60)]
        for _ in range(600):
            stream = chance.choice(streams)
            if chance.random() < 0.2:
                stream.bytes = chance.randrange(stream.bytes + 1)  # taken, not reported
            elif chance.random() < 0.1:
                stream.bytes = 0
                buffers.discard(stream.client, stream)
            elif stream.goes_on:
                stream.hold(min(stream.bytes + chance.randrange(4 * UNIT), PART))
            buffers.check()
            assert sum(stream.bytes for stream in streams if stream.goes_on and stream.bytes > MARK_BYTES) <= BOUND
