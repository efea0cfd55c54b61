"""Ids that are drawn here begin with the tag that the service wants. One that may have been accepted stays as it is."""

from __future__ import annotations

import pytest
from tests.unit.client.scripted_server import Reply, ScriptedServer, coded
from tests.unit.client.test_commit_retries import WRITE, commits_of, committed

from holdfast.commit.format.transaction import Transaction
from holdfast.errors import Code, InvalidRequest, OutcomeUnknown

TAG, OTHER_TAG = "c2VhdC8:", "cm93Lw:"
LOG = "1" * 32
PLAIN = Reply(200, {"version": 50, "leader_id": "l", "log_id": LOG})
TAGGED = Reply(200, {"version": 50, "leader_id": "l", "log_id": LOG, "id_tag": TAG})


def needs(tag: str = TAG) -> Reply:
    return Reply(400, {"error": {"code": "id_needs_tag", "message": "no tag", "tag": tag}})


def ids_of(server: ScriptedServer) -> list[str]:
    return [str(sent["request_id"]) for sent in commits_of(server)]


def test_a_version_answer_names_the_tag_of_every_id_that_is_drawn_after_it(connect):
    with ScriptedServer(TAGGED, committed(60), committed(61)) as server:
        client = connect(server.url)
        client.call("commit", WRITE)
        client.call("commit", WRITE)
        assert all(name.startswith(TAG) and len(name) >= 20 + len(TAG) for name in ids_of(server))


def test_a_service_without_tags_gets_ids_as_before(connect):
    with ScriptedServer(PLAIN, committed(60)) as server:
        connect(server.url).call("commit", WRITE)
        assert ":" not in ids_of(server)[0]


def test_a_refused_id_is_drawn_again_with_the_tag_that_the_refusal_names(connect):
    """Also where the token has other prefixes now. An overloaded service gets the same id again."""
    with ScriptedServer(needs(), coded(503, "overloaded"), committed(60), needs(OTHER_TAG), committed(61)) as server:
        client = connect(server.url)
        client.call("commit", WRITE, read_version=50)
        client.call("commit", WRITE, read_version=50)
        first, second, again, third, fourth = ids_of(server)
        assert second == again and second.startswith(TAG) and third.startswith(TAG) and fourth.startswith(OTHER_TAG)
        assert len({first, second, third, fourth}) == 4


def test_a_transaction_of_a_function_is_decided_once_for_it(connect):
    with ScriptedServer(PLAIN, needs(), committed(60)) as server:
        decided = []

        def body(txn):
            decided.append(1)
            txn.write(b"k", b"v")
            yield from ()

        connect(server.url).transact(body)
        assert len(decided) == 1
        assert [name.startswith(TAG) for name in ids_of(server)] == [False, True]


def test_a_service_that_refuses_every_tag_is_asked_a_bounded_number_of_times(connect):
    with ScriptedServer(*[needs()] * 20) as server, pytest.raises(InvalidRequest) as raised:
        connect(server.url).call("commit", WRITE, read_version=50)
    assert raised.value.code is Code.ID_NEEDS_TAG
    assert len(server.asked) <= 9


def test_the_id_of_the_caller_is_never_changed(connect):
    own = "an-id-of-the-caller-0"
    with ScriptedServer(TAGGED, needs()) as server:
        client = connect(server.url)
        client.call("version")
        with pytest.raises(InvalidRequest, match="no tag"):
            client.call("commit", WRITE, read_version=50, request_id=own)
        assert ids_of(server) == [own]


def test_an_attempt_that_may_have_been_accepted_is_not_drawn_again(connect):
    refused = Reply(403, {"error": {"code": "permission_denied", "message": "other keys now"}})
    with ScriptedServer(coded(504, "outcome_unknown"), refused) as server:
        with pytest.raises(OutcomeUnknown) as raised:
            connect(server.url).call("commit", WRITE, read_version=50)
        assert [raised.value.fields["request_id"]] == ids_of(server)


def test_a_stream_of_commits_draws_tagged_ids(connect):
    lines = b'{"status":"committed","version":60,"leader_id":"l"}\n'
    with ScriptedServer(TAGGED, Reply(200, lines)) as server:
        connect(server.url).results([Transaction(list(WRITE))])
        assert TAG in server.asked[1].body.decode()
