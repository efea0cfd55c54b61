"""Publishing: numbers, duplicates, limits; and what a definition changes."""

from __future__ import annotations

import pytest
from tests.definitions import define
from tests.stores.state_harness import Machine

from holdfast.errors import Code, Conflict, HoldfastError, InvalidRequest, LimitExceeded, NotFound
from holdfast.stores.machine import store as publishers
from holdfast.stores.machine.redefine import definition_at
from holdfast.stores.values.commands import Publish, Published
from holdfast.stores.values.effects import Advise
from holdfast.wire.parts import Message

SHARED = {"type": "shared"}
DAY_MS = 86_400_000


def refused(machine: Machine, *messages: Message | str, publisher: str = "") -> HoldfastError:
    """The refusal of a publication, which changed nothing."""
    before = machine.state.snapshot()
    with pytest.raises(HoldfastError) as found:
        machine.publish(*messages, publisher=publisher)
    assert machine.state.snapshot() == before
    return found.value


# ---- publishers -----------------------------------------------------------------------------------------------------


def test_a_message_sent_again_is_confirmed_with_its_first_number() -> None:
    machine = Machine(a=SHARED)
    machine.publish("other")
    first = machine.numbered("p", 1, 3)
    machine.publish("other")
    again = machine.numbered("p", 2, 4)
    assert (first.first_seq, first.last_seq) == (2, 4)
    assert (again.first_seq, again.last_seq, again.duplicates) == (3, 7, 2)
    assert machine.numbered("p", 1).first_seq == 2
    assert machine.kept == 7


def test_a_repetition_changes_nothing_though_other_messages_came_between() -> None:
    machine = Machine(a=SHARED)
    machine.numbered("p", 1)
    machine.publish("other")
    machine.numbered("p", 2)
    again = [Message(publisher_seq=1), Message(publisher_seq=2)]
    applied = machine.state.apply(Publish(machine.now_ms, "s", "p", again))
    assert applied.result == Published(1, 3, 2, 0)
    assert not applied.changed


def test_a_gap_in_a_publishers_numbers_is_refused_with_what_is_expected() -> None:
    machine = Machine(a=SHARED)
    machine.numbered("p", 10)
    found = refused(machine, Message(publisher_seq=12), publisher="p")
    assert (type(found), found.code, found.fields["expected"]) == (Conflict, Code.SEQUENCE_GAP, 11)


def test_a_new_publisher_begins_with_any_number_and_keeps_it_over_a_restart() -> None:
    machine = Machine(a=SHARED)
    machine.numbered("p", 500)
    machine.restart()
    assert machine.numbered("p", 500).duplicates == 1
    assert machine.numbered("p", 501).duplicates == 0


def test_publishers_do_not_disturb_one_another() -> None:
    machine = Machine(a=SHARED)
    for number in range(1, 4):
        for publisher in "pq":
            machine.numbered(publisher, number)
    assert [machine.numbered("p", number).first_seq for number in range(1, 4)] == [1, 3, 5]
    assert [machine.numbered("q", number).first_seq for number in range(1, 4)] == [2, 4, 6]


def test_above_so_many_publishers_the_one_idle_for_longest_is_forgotten_and_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishers, "PUBLISHERS_MAX", 2)
    machine = Machine(a=SHARED)
    for publisher in "pqpr":  # p again, so that q is the one
        machine.numbered(publisher, 2 if publisher == "p" and machine.kept == 2 else 1)
    assert len(machine.state.stores["s"].publishers) == 2
    assert machine.numbered("p", 2).duplicates == 1
    found = refused(machine, Message(publisher_seq=2), publisher="q")
    assert found.code is Code.UNKNOWN_PUBLISHER
    machine.restart()
    assert machine.numbered("p", 3).duplicates == 0
    assert refused(machine, Message(publisher_seq=2), publisher="q").code is Code.UNKNOWN_PUBLISHER


def test_a_publisher_idle_for_its_time_is_unknown_unless_it_begins_anew() -> None:
    machine = Machine(a=SHARED)
    machine.numbered("p", 1)
    machine.later(7 * DAY_MS - 1)
    assert machine.numbered("p", 2).duplicates == 0
    machine.later(7 * DAY_MS)
    found = refused(machine, Message(publisher_seq=3), publisher="p")
    assert found.code is Code.UNKNOWN_PUBLISHER
    assert machine.numbered("p", 1).duplicates == 0


@pytest.mark.parametrize("numbers", [[0], [1, 3], [2, 1], [1, 0]])
def test_a_publisher_numbers_its_messages_rising_by_one(numbers: list[int]) -> None:
    found = refused(Machine(a=SHARED), *[Message(publisher_seq=number) for number in numbers], publisher="p")
    assert isinstance(found, InvalidRequest)


def test_duplicates_older_than_the_history_are_duplicates_still() -> None:
    machine = Machine(a=SHARED)
    machine.checked = False
    for number in range(1, 201):
        machine.numbered("p", number)
        machine.publish("other")
    machine.state.check()
    again = machine.numbered("p", 1)
    assert again.duplicates == 1
    assert again.first_seq == machine.state.stores["s"].publishers.seq_of("p", 200 - 127)


# ---- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "cluster", "code", "limit"),
    [
        ({"message_limit": 2}, {}, Code.STORE_FULL, "message_limit"),
        ({"bytelimit": 25}, {}, Code.STORE_FULL, "bytelimit"),
        ({}, {"message_limit": 2}, Code.CLUSTER_FULL, "message_limit"),
        ({}, {"bytelimit": "25"}, Code.CLUSTER_FULL, "bytelimit"),
    ],
)
def test_a_publication_over_a_limit_is_refused_whole_and_fits_after_an_acknowledgement(
    store: dict[str, object], cluster: dict[str, object], code: Code, limit: str
) -> None:
    machine = Machine(store=store, cluster=cluster, a=SHARED)
    machine.publish("x" * 10, "x" * 10)
    found = refused(machine, "x" * 10)
    assert found.code is code
    assert limit in found.fields
    machine.attach("a", "one")
    machine.deliver("a", "one")
    machine.ack("a", "one", 1)
    assert machine.publish("x" * 10).first_seq == 3


def test_what_nobody_wants_is_not_counted_against_limits() -> None:
    machine = Machine(store={"message_limit": 1}, a={"type": "shared", "matcher": {"kind": "a"}})
    assert machine.publish("x", "y", Message(fields={"kind": "a"})).unmatched == 2


def test_a_message_larger_than_the_store_takes_is_refused_with_both_numbers() -> None:
    machine = Machine(store={"max_message_size": 10}, a=SHARED)
    machine.publish("x" * 10)
    found = refused(machine, "fits", "x" * 11)
    assert isinstance(found, LimitExceeded)
    assert (found.code, found.fields["bytes"], found.fields["max"]) == (Code.MESSAGE_TOO_LARGE, 11, 10)


@pytest.mark.parametrize(
    "message",
    [
        Message(key=""),
        Message(key="k" * 1_025),
        Message(fields={"": 1}),
        Message(fields={"f" * 257: 1}),
        Message(fields={"f": "v" * 257}),
        Message(fields={"f": "é" * 129}),
        Message(fields={str(number): 1 for number in range(257)}),
        Message(fields={"f": 1 << 63}),
        Message(ttl_ms=-1),
        Message(deliver_at_ms=-1),
    ],
)
def test_a_message_out_of_bounds_is_refused(message: Message) -> None:
    assert isinstance(refused(Machine(a=SHARED), "fits", message), InvalidRequest)


def test_the_size_of_a_message_is_that_of_key_fields_and_body() -> None:
    machine = Machine(a=SHARED)
    machine.publish(Message(body=b"12345", key="kk", fields={"é": "xyz", "n": 7, "b": True}))
    assert machine.state.stores["s"].counts.live_bytes == 5 + 2 + (2 + 3) + (1 + 8) + (1 + 8)


# ---- definitions ----------------------------------------------------------------------------------------------------


def test_a_durable_that_is_not_defined_any_more_goes_with_what_only_it_kept() -> None:
    machine = Machine(a=SHARED, b={"type": "shared", "matcher": {"kind": "b"}})
    machine.publish("x", Message(fields={"kind": "b"}))
    machine.define(b={"type": "shared", "matcher": {"kind": "b"}})
    assert Advise("s", "a", "", "durable_deleted", (("cause", "not_defined"),)) in machine.effects
    assert machine.kept == 1


def test_a_store_that_comes_again_is_empty_and_begins_with_number_one() -> None:
    machine = Machine(a=SHARED)
    machine.publish("x", "y")
    machine.do(define(b"{}", machine.state, at_ms=machine.now_ms))
    with pytest.raises(NotFound):
        machine.publish("x")
    machine.define(a=SHARED)
    machine.attach("a", "one")
    assert machine.publish("z").first_seq == 1
    assert machine.numbers("a", "one") == [1]


def test_a_definition_that_somebody_overtook_is_refused() -> None:
    machine = Machine(a=SHARED)
    with pytest.raises(Conflict) as found:
        machine.do(define(b"{}", at_ms=machine.now_ms))
    assert (found.value.code, found.value.fields["revision"]) == (Code.REVISION_MISMATCH, 1)


def test_the_history_keeps_the_last_definitions() -> None:
    machine = Machine(cluster={"max_deployment_history": 2}, a=SHARED)
    for prefetch in (5, 6):
        machine.define(cluster={"max_deployment_history": 2}, a={**SHARED, "prefetch": prefetch})
    assert [item.revision for item in machine.state.history] == [2, 3]
    former = definition_at(machine.state, 2)
    assert former is not None
    assert former.stores["s"].durables["a"].prefetch == 5


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"type": "standard"}, Code.TYPE_MISMATCH),
        ({"type": "shared", "matcher": {"kind": "b"}}, Code.MATCHER_MISMATCH),
    ],
)
def test_a_static_durable_takes_over_a_dynamic_one_of_its_kind_only(wanted: dict[str, object], code: Code) -> None:
    machine = Machine()
    machine.attach("new", "one", template="shared")
    machine.publish("x")
    with pytest.raises(InvalidRequest) as found:
        machine.define(new=wanted)
    assert found.value.code is code
    machine.define(new=SHARED)
    assert machine.numbers("new", "one") == [1]
    assert not machine.durable("new").definition.dynamic


def test_an_edited_template_changes_the_durables_made_of_it() -> None:
    machine = Machine(store={"templates": {"t": {"type": "shared", "prefetch": 1}}})
    machine.attach("new", "one", template="t")
    machine.publish("x", "y")
    assert machine.numbers("new", "one") == [1]
    machine.define(store={"templates": {"t": {"type": "shared", "prefetch": 2}}})
    assert machine.numbers("new", "one") == [2]


def test_a_durable_wants_messages_from_its_definition_on() -> None:
    machine = Machine(a=SHARED)
    machine.publish("x")
    machine.define(a=SHARED, b=SHARED)
    machine.publish("y")
    machine.attach("b", "one")
    assert machine.numbers("b", "one") == [2]
