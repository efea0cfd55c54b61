"""Laws of tokens in the clients: what is remembered is of one store, and no number of it is sent to another."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.client.stores.test_consuming import Answers, Service
from tests.unit.client.stores.test_publishing import Store

from holdfast.client.protocol.transaction import TransactionBuilder
from holdfast.errors import Closed, Code, OutcomeUnknown
from holdfast.stores.values.identity import is_continued, is_same, token_of
from holdfast.wire.parts import Delivery
from holdfast.wire.stores import AcknowledgePart, Entry, Lock, MapPart, PublishPart

OLD = token_of("log", 1, 2)
OTHER_HISTORY = token_of("forked", 1, 2)
REPLACED = msgspec.json.encode({"error": {"code": "store_replaced", "message": "no"}})


def test_a_token_of_a_store_is_the_same_as_that_of_its_durable() -> None:
    assert is_same(token_of("log", 1), OLD) and is_same(OLD, token_of("log", 1))
    assert not is_same(token_of("log", 3), OLD) and not is_same(OLD, token_of("log", 1, 3))
    assert is_continued(OLD, OTHER_HISTORY) and not is_same(OLD, OTHER_HISTORY)


def test_frames_and_reconnects_carry_the_token_of_what_was_attached() -> None:
    service = Service()
    service.attaches(token=OLD)
    service.delivers(1)
    (message,) = service.machine.take_all(0)
    assert message.token == OLD
    service.machine.acknowledge([(1, 1)], 0)
    service.machine.put_back(2, 0)
    service.machine.flush()
    assert {frame["token"] for frame in service.hears() if frame["type"] in ("ack", "nack")} == {OLD}
    service.loses()
    service.waits()
    assert f"&token={OLD}" in service.connects().target


def test_a_subscriber_whose_durable_was_made_again_ends_with_every_acknowledgement() -> None:
    service = Service()
    service.attaches(token=OLD)
    service.delivers(1)
    service.takes()
    answers = Answers()
    service.machine.acknowledge([(1, 1)], 0, answers)
    service.hears()
    service.loses()
    service.waits()
    service.step()
    service.machine.refused(service.now_ms, 409, {"content-type": "application/json"}, REPLACED)
    assert service.machine.has_ended
    for error in (answers.error, service.machine.failure):
        assert isinstance(error, Closed) and error.code is Code.STORE_REPLACED


def test_in_another_history_what_is_not_confirmed_is_not_sent_and_fails() -> None:
    """A restored store, or one in memory after a restart: its numbers mean other messages."""
    service = Service()
    service.attaches(token=OLD)
    service.delivers(1, 2, 3)
    messages = service.machine.take_all(0)
    asked, waiting = Answers(), Answers()
    service.machine.acknowledge([(1, 1)], 0, asked)
    service.hears()
    service.loses()
    service.machine.acknowledge([(2, 2)], 0, waiting)
    service.waits()
    service.attaches(token=OTHER_HISTORY)
    assert not [frame for frame in service.hears() if frame["type"] == "ack"]
    for answers in (asked, waiting):
        assert isinstance(answers.error, Closed) and answers.error.code is Code.STORE_REPLACED
    assert service.machine.unconfirmed == 0
    (advisory,) = [one for one in service.machine.advisories.take() if one.kind == "store_replaced"]
    assert advisory.facts == {"messages": 2}
    with pytest.raises(Closed, match="token"):
        service.machine.require_own(messages)
    service.delivers(1)
    service.machine.require_own(service.machine.take_all(0))
    assert not service.machine.has_ended, "the durable is the same"


def test_the_same_durable_gets_what_was_not_confirmed_again() -> None:
    service = Service()
    service.attaches(token=OLD)
    service.delivers(1)
    service.takes()
    service.machine.acknowledge([(1, 1)], 0)
    service.machine.flush()
    service.hears()
    service.loses()
    service.waits()
    service.attaches(token=OLD)
    (again,) = [frame for frame in service.said if frame["type"] == "ack"]
    assert (again["ranges"], again["token"]) == ([[1, 1]], OLD)


class Stamped(Store):
    """A store whose receipts have its token."""

    token = "first"

    def keep(self, body) -> bytes:  # type: ignore[no-untyped-def]
        receipt = msgspec.msgpack.decode(super().keep(body))
        return msgspec.msgpack.encode({**receipt, "token": self.token})


def test_a_publisher_sends_the_token_of_its_first_receipt_and_another_store_gets_another_publisher() -> None:
    store = Stamped()
    store.add(b"a")
    store.accepts()
    sent = store.add(b"b")
    store.refuses(409, Code.STORE_REPLACED)
    store.token = "second"
    store.accepts()
    store.add(b"c")
    store.accepts()
    assert [body.token for body in store.requests] == ["", "first", "", "second"]
    assert sent[0].error is None and store.kept == [b"a", b"b", b"c"]
    assert store.requests[1].publisher_id != store.requests[2].publisher_id


def test_a_publisher_whose_store_went_on_in_another_history_sends_the_newest_token() -> None:
    store = Stamped()
    for token in ("first", "restored", "restored again"):
        store.token = token
        store.add(b"a")
        store.accepts()
    assert [body.token for body in store.requests] == ["", "first", "restored"]
    assert len({body.publisher_id for body in store.requests}) == 1


def test_what_another_store_may_have_had_is_not_sent_to_the_next_one() -> None:
    store = Stamped()
    store.add(b"a")
    store.accepts()
    sent = store.add(b"b")
    store.loses_the_answer(keeps=True)
    store.waits()
    store.refuses(409, Code.STORE_REPLACED)
    assert isinstance(sent[0].error, OutcomeUnknown)


def test_a_publisher_that_the_application_numbers_ends_with_its_store() -> None:
    store = Stamped()
    store.new_machine("orders", 1)
    store.add(b"a")
    store.accepts()
    sent = store.add(b"b")
    store.refuses(409, Code.STORE_REPLACED)
    assert sent[0].error is not None and sent[0].error.code is Code.STORE_REPLACED
    with pytest.raises(Closed):
        store.add(b"c")


def delivery(seq: int, token: str) -> Delivery:
    return Delivery(seq, {}, None, b"", 1, 1, False, token=token)


def test_a_transaction_acknowledges_messages_with_their_token() -> None:
    txn = TransactionBuilder(None, 1)  # type: ignore[arg-type]  # nothing is read
    txn.acknowledge("s", "d", "me", delivery(1, OLD))
    txn.acknowledge("s", "d", "me", 2, delivery(3, OLD))
    parts = msgspec.json.decode(txn.request().acknowledge, type=list[AcknowledgePart])  # type: ignore[arg-type]
    assert parts == [AcknowledgePart("s", "d", "me", [1, 2, 3], OLD)]
    with pytest.raises(Closed) as refused:
        txn.acknowledge("s", "d", "me", delivery(4, OTHER_HISTORY))
    assert refused.value.code is Code.STORE_REPLACED


MAP, OTHER_MAP = token_of("log", 1, 9), token_of("log", 1, 10)


def test_a_transaction_changes_a_map_with_the_token_of_what_its_change_rests_on() -> None:
    txn = TransactionBuilder(None, 1)  # type: ignore[arg-type]  # nothing is read
    txn.change_map("s", "locked", "k", b"v", fence=Lock("k", "me", 3, 0, MAP))
    txn.change_map("s", "read", "k", b"v", if_revision=Entry("k", b"u", 7, OTHER_MAP))
    txn.change_map("s", "known by numbers", "k", b"v", if_revision=7, fence=3)
    locked, read, by_numbers = msgspec.json.decode(txn.request().maps, type=list[MapPart])  # type: ignore[arg-type]
    assert (locked.fence, locked.token, locked.changes[0].if_revision) == (3, MAP, None)
    assert (read.fence, read.token, read.changes[0].if_revision) == (0, OTHER_MAP, 7)
    assert (by_numbers.fence, by_numbers.token, by_numbers.changes[0].if_revision) == (3, "", 7)
    txn.change_map("s", "locked", "l", b"v", fence=Lock("k", "me", 3, 0, MAP))
    with pytest.raises(Closed) as refused:
        txn.change_map("s", "locked", "k", b"v", if_revision=Entry("k", b"u", 7, OTHER_MAP))
    assert refused.value.code is Code.STORE_REPLACED


def test_a_transaction_publishes_into_the_store_that_its_other_parts_are_of() -> None:
    txn = TransactionBuilder(None, 1)  # type: ignore[arg-type]  # nothing is read
    txn.publish("acknowledged", b"")
    txn.publish("changed", b"")
    txn.publish("nothing is known", b"")
    txn.acknowledge("acknowledged", "d", "me", delivery(1, OLD))
    txn.change_map("changed", "m", "k", b"v", fence=Lock("k", "me", 3, 0, MAP))
    parts = msgspec.json.decode(txn.request().publish, type=list[PublishPart])  # type: ignore[arg-type]
    of_store = token_of("log", 1)
    assert [(part.store, part.token) for part in parts] == [
        ("acknowledged", of_store),
        ("changed", of_store),
        ("nothing is known", ""),
    ]
