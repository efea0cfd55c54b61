"""A client that may not ask for an attempt does not know its outcome, and says with which id it can be asked."""

from __future__ import annotations

import pytest
from tests.unit.client.scripted_server import Reply, ScriptedServer
from tests.unit.client.test_commit_retries import WRITE

from holdfast.errors import OutcomeUnknown, PermissionDenied

VERSION = Reply(200, {"version": 50, "leader_id": "l", "log_id": "1" * 32})
REFUSED = Reply(403, {"error": {"code": "permission_denied", "message": "the token may not ask"}})
ENDED = Reply(401, {"error": {"code": "unauthenticated", "message": "the bearer token has expired"}})
OPEN = Reply(504, {"error": {"code": "outcome_unknown", "message": "not proved"}})


def test_a_refused_question_leaves_the_outcome_unknown(connect):
    with ScriptedServer(REFUSED) as server, pytest.raises(OutcomeUnknown, match="a token that may commit") as raised:
        connect(server.url).call("status", "an-id-of-another-one", 50)
    assert raised.value.fields["request_id"] == "an-id-of-another-one"


def test_an_attempt_whose_question_is_refused_is_unknown_and_never_sent_again(connect):
    with ScriptedServer(VERSION, OPEN, REFUSED) as server:
        with pytest.raises(OutcomeUnknown) as raised:
            connect(server.url).call("commit", WRITE)
        assert raised.value.fields["request_id"]
        assert len(server.asked) == 3


def test_a_token_that_has_ended_is_said_to_have(connect):
    with ScriptedServer(ENDED) as server, pytest.raises(PermissionDenied, match="expired"):
        connect(server.url).call("status", "an-id-of-another-one", 50)
