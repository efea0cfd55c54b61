"""Sets of numbers, deadlines, waiting and held runs, and counts of who keeps what: each against an obvious one."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.stores.memory_ports import MemoryBlocks

from holdfast.stores.durables.leases import Holder, Leases, RedeliveryQueue
from holdfast.stores.values.deadlines import Deadlines
from holdfast.stores.values.ports import BLOCK_MESSAGES
from holdfast.stores.values.reference_counts import ReferenceCounts
from holdfast.stores.values.sequence_set import SequenceSet

NUMBERS = st.integers(1, 40)
RUNS = st.tuples(NUMBERS, st.integers(0, 6)).map(lambda run: (run[0], run[0] + run[1]))


@given(st.lists(st.tuples(st.sampled_from(["add", "forget"]), RUNS), max_size=30), RUNS)
def test_a_sequence_set_is_a_set(changes: list[tuple[str, tuple[int, int]]], asked: tuple[int, int]) -> None:
    low, high = asked
    found, plain = SequenceSet(), set[int]()
    for kind, (first, last) in changes:
        if kind == "add":
            found.add(first, last)
            plain |= set(range(first, last + 1))
        else:
            found.forget_below(first)
            plain = {number for number in plain if number >= first}
        found.check()
    assert {number for first, last in found.runs() for number in range(first, last + 1)} == plain
    assert [number in found for number in range(60)] == [number in plain for number in range(60)]
    assert found.count(low, high) == len([number for number in plain if low <= number <= high])
    assert found.after(low) == next(number for number in range(low, 99) if number not in plain)
    assert found.next_member(low, 99) == min((number for number in plain if number >= low), default=99)


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 20)), max_size=60), st.integers(0, 20))
def test_deadlines_come_in_order_and_each_key_has_its_last(changes: list[tuple[int, int | None]], now: int) -> None:
    found, plain = Deadlines[int](), dict[int, int]()
    for key, at_ms in changes:
        found.set(key, at_ms)
        plain.pop(key, None)
        if at_ms is not None:
            plain[key] = at_ms
        assert found.next_ms() == min(plain.values(), default=None)
    popped: list[int] = []
    while (key := found.pop(now)) is not None:
        popped.append(key)
    assert popped == [key for key, _ in sorted(plain.items(), key=lambda item: (item[1], item[0])) if plain[key] <= now]
    assert found.items() == {key: at_ms for key, at_ms in plain.items() if at_ms > now}


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 2), st.integers(0, 9)), unique_by=lambda item: item[0]), st.data())
def test_what_came_back_goes_out_lowest_first_with_its_deliveries(
    items: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    found = RedeliveryQueue()
    plain: dict[int, tuple[int, int]] = {}
    for seq, deliveries, delay in items:
        if delay:
            found.add_later(delay, seq, deliveries)
        else:
            found.add(seq, seq, deliveries)
        plain[seq] = deliveries, delay
        found.check()
    now = data.draw(st.integers(0, 9))
    found.wake(now)
    if plain:
        gone = data.draw(st.sampled_from(sorted(plain)))
        assert found.remove(gone) == plain.pop(gone)[0]
    found.check()
    out: list[tuple[int, int]] = []
    while (run := found.take(data.draw(st.integers(1, 4)))) is not None:
        out += [(seq, run[2]) for seq in range(run[0], run[1] + 1)]
    assert out == [(seq, plain[seq][0]) for seq in sorted(plain) if plain[seq][1] <= now]
    assert found.total == sum(1 for _, delay in plain.values() if delay > now)


@given(st.lists(st.tuples(st.booleans(), RUNS, st.integers(0, 9)), max_size=30), st.integers(0, 9))
def test_holdings_know_who_holds_what_until_when(changes: list[tuple[bool, tuple[int, int], int]], now: int) -> None:
    found = Leases()
    found.of = {"a": Holder(), "b": Holder()}
    plain: dict[int, tuple[str, int]] = {}
    for is_held, (first, last), deadline in changes:
        name = "a" if deadline % 2 else "b"
        if is_held and not any(seq in plain for seq in range(first, last + 1)):
            found.hold(found.of[name], (first, last, 1, deadline))
            plain |= dict.fromkeys(range(first, last + 1), (name, deadline))
        elif not is_held:
            taken = found.take(found.of[name], first, last)
            seqs = [seq for run in taken for seq in range(run[0], run[1] + 1)]
            assert seqs == [seq for seq in range(first, last + 1) if plain.get(seq, ("", 0))[0] == name]
            for seq in seqs:
                del plain[seq]
        found.check()
    assert [found.holder_of(seq) for seq in range(1, 50)] == [plain.get(seq, (None, 0))[0] for seq in range(1, 50)]
    oldest = {min((seq for seq, (of, _) in plain.items() if of == name), default=0) for name in "ab"}
    lapsed = {
        (seq, seq in counting) for _, run, counting in found.lapsed(now, 1_000) for seq in range(run[0], run[1] + 1)
    }
    assert lapsed == {(seq, seq in oldest) for seq, (_, deadline) in plain.items() if 0 < deadline <= now}
    found.check()


@given(
    st.lists(st.tuples(st.integers(1, 700), st.integers(0, 3)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 1_500)), max_size=8),
)
def test_counts_and_totals_are_those_of_a_list_over_block_borders(
    batches: list[tuple[int, int]], releases: list[tuple[int, int]]
) -> None:
    counts = ReferenceCounts("s", MemoryBlocks(strict=True))
    plain: list[list[int]] = [[0, 0]]
    for at_ms, (count, kept) in enumerate(batches, 1):
        assert counts.append(array("I", range(count)), array("H", [kept] * count), at_ms) == len(plain)
        plain += [[kept, size] for size in range(count)]
    for first, length in releases:
        run = [seq for seq in range(first, first + length + 1) if seq < len(plain)]
        if not run or any(not plain[seq][0] for seq in run):
            continue
        assert counts.release(run[0], run[-1]) == sum(plain[seq][1] for seq in run)
        for seq in run:
            plain[seq][0] -= 1
    counts.check()
    assert [counts.references(seq) for seq in range(len(plain))] == [kept for kept, _ in plain]
    assert counts.live == sum(1 for kept, _ in plain if kept)
    assert counts.live_bytes == sum(size for kept, size in plain if kept)
    since = counts.first_since(2, 1, counts.next_seq)
    # A block that is forgotten is passed: it has no message that is kept.
    newer = min(batches[0][0] + 1, counts.next_seq)
    assert since >= newer and not any(kept for kept, _ in plain[newer:since])
    assert counts.next_seq <= 8 * 700 + 1 and BLOCK_MESSAGES < 3_000
