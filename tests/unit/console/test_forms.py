"""What a form says before it acts, with numbers, and what pages make of documents of the service."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from holdfast.console.application import own_address
from holdfast.console.call import Limit
from holdfast.console.frame import _limit
from holdfast.console.html import text_of
from holdfast.console.pages.cluster import NO_STANDBY, STEP_DOWN, has_standby
from holdfast.console.pages.maps import LOCK
from holdfast.console.pages.messages import fact_of
from holdfast.console.pages.retention import REMOVE, SET, amounts, said_of
from holdfast.console.pages.stores import _cluster, _durable, _history, _store
from holdfast.console.pages.stores_acts import BACKUP, EDIT_CLUSTER, REWIND, ROLLBACK, SUSPEND
from holdfast.console.reading.service import Document, Member
from holdfast.errors import Conflict, InvalidRequest, NotFound, Unavailable
from holdfast.files.document_process import DocumentReader
from holdfast.wire.log import AgeOfLog, Liveness, LogStorage, PolicyState, RetentionAnswer, RetentionPlan

ALIVE = Liveness("leader", True, "127.0.0.1:1")
AGES = (AgeOfLog(3600.0, 10, 1024), AgeOfLog(86_400.0, 5, 2048), AgeOfLog(None, 1, 4096))
DOCUMENTS: dict[str, Document] = {
    "/v1/cluster": {"revision": 8, "stores": 2, "durables": 3, "messages": 5,
                    "log": {"allocated": 2048, "in_use": 1024}},
    "/v1/cluster/definition": {"revision": 8, "definition": {"stores": {"tz": {"durables": {"w": {}}}, "a": {}}}},
    "/v1/cluster/history/3": {"revision": 3, "definition": {"stores": {"a": {}, "b": {}}}},
    "/v1/cluster/history/8": {"revision": 8, "definition": {}},
    "/v1/cluster/history": {"history": [{"revision": 3, "at_ms": 1}, {"revision": 8, "at_ms": 2}]},
    "/v1/stores/a/durables/w": {
        "name": "w", "type": "shared", "retention_time": 3600,
        "counts": {"acknowledged": 1_204, "backlog": 7, "messages": 7},
    },
    "/v1/stores/a/durables/m": {"name": "m", "type": "map", "locks": [
        {"key": "k", "owner": "desk", "fence": 1, "until_ms": 32_503_680_000_000},
        {"key": "old", "owner": "x", "until_ms": 1},
    ]},
    "/v1/log/storage": {"at_ms": 1, "snapshots": [], "checkpoints": [], "is_whole": True, "ages": [
        {"seconds_max": each.seconds_max, "objects": each.objects, "bytes": each.bytes} for each in AGES
    ]},
}  # fmt: skip


class Answers:
    """A service that answers from ``DOCUMENTS``."""

    urls = ("http://127.0.0.1:1",)
    has_token = False

    async def read(self, target: str) -> Document:
        if target not in DOCUMENTS:
            raise NotFound("there is no such store", target=target)
        return DOCUMENTS[target]

    async def collection(self, target: str, _: str) -> list[Document]:
        raise NotFound("there is no such store", target=target)

    @property
    def log(self) -> Any:
        """The client of the log."""

        async def retention() -> RetentionAnswer:
            return RetentionAnswer(1, {"a-month": PolicyState(max_age_seconds=2_592_000.0)}, {}, 0, 0)

        async def plan_retention(*_: object) -> RetentionPlan:
            return RetentionPlan(0, 0, 0, 0)

        return SimpleNamespace(retention=retention, plan_retention=plan_retention)


def call_of(members: tuple[Member, ...] = (), form: dict[str, str] | None = None, **query: str) -> Any:
    """A request."""
    watcher = SimpleNamespace(
        leading=next((each for each in members if each.leads), None), members=list(members), newest=None,
        rate_of_store=lambda *_, **__: None, backlog=lambda *_: (), value_of_store=lambda *_, **__: None,
    )  # fmt: skip
    return SimpleNamespace(
        documents=DocumentReader(),
        service=Answers(), form=form or {}, query=query, path="/", watcher=watcher, options=SimpleNamespace(acts=True),
        text=lambda name, default="": query.get(name, default), required=query.__getitem__,
        number=lambda name, default=0: int(query.get(name, default)), here=lambda **_: "/",
    )  # fmt: skip


def effect_of(action: Any, call: Any) -> str:
    """What the form of an action says."""
    return str(text_of(asyncio.run(action.form(call)).effect))


def test_a_step_down_without_a_standby_says_that_nothing_leads_afterwards() -> None:
    leader = Member("http://127.0.0.1:1", ALIVE, None, 0.0)
    standby = Member("http://127.0.0.1:2", Liveness("other", False, "127.0.0.1:2"), None, 0.0)
    silent = Member("http://127.0.0.1:3", None, NotFound("away"), 0.0)
    assert not has_standby([leader, silent])
    assert has_standby([leader, standby])
    assert text_of(NO_STANDBY) in effect_of(STEP_DOWN, call_of((leader, silent)))
    assert text_of(NO_STANDBY) not in effect_of(STEP_DOWN, call_of((leader, standby)))


def test_forms_say_how_much_they_are_about() -> None:
    assert "1,204 messages" in effect_of(REWIND, call_of(store="a", durable="w"))
    assert "Now 7 messages wait" in effect_of(REWIND, call_of(store="a", durable="w"))
    assert "2 stores, 3 durables, 5 messages; pages of 2.0 KiB, of which 1.0 KiB are in use" in effect_of(
        SUSPEND, call_of()
    )


def test_a_rollback_names_what_it_removes_and_is_not_offered_for_the_revision_in_force() -> None:
    said = effect_of(ROLLBACK, call_of(revision="3"))
    assert "Removes: <strong>tz, tz/w</strong>" in said
    assert "Makes: <strong>b</strong>" in said
    with pytest.raises(InvalidRequest, match="in force"):
        effect_of(ROLLBACK, call_of(revision="8"))
    history = text_of(asyncio.run(_history(call_of())))
    assert "revision=3" in history
    assert "rollback?revision=8" not in history
    assert "Author" not in history
    named = call_of()
    named.service.read = AsyncMock(return_value={"history": [{"revision": 3, "at_ms": 1, "author": "ann"}]})
    assert "ann" in text_of(asyncio.run(_history(named)))


def test_a_policy_says_how_old_the_log_is_and_that_it_replaces_one() -> None:
    assert amounts(LogStorage(1, (), (), AGES, True)) == (
        "The log has 7.0 KiB, 6.0 KiB of it older than 1 h, 4.0 KiB of it older than 1 d."
    )
    assert "a-month (the last 30 d)" in text_of(asyncio.run(SET.form(call_of())).effect)
    given = {"kind": "max_bytes", "amount": "1000"}
    new = asyncio.run(cast(Any, SET.act(call_of(form={"policy": "week", **given}))))
    assert new.typed == "set retention"
    old = asyncio.run(cast(Any, SET.act(call_of(form={"policy": "a-month", **given}))))
    assert old.typed == "replace it"
    assert "this replaces it" in text_of(old.effect)


@pytest.mark.parametrize(
    ("plan", "said", "limits"),
    [
        (RetentionPlan(900, 40, 81_920, 0), "40 objects, 80.0 KiB (81,920 bytes)", (Limit("object", 40),)),
        (RetentionPlan(900, 40, 81_920, 0, False), "at least 40 objects", (Limit("object", 40, is_exact=False),)),
        (RetentionPlan(0, 0, 0, 0, warning="nothing is truncated: x"), "remove nothing", ()),
        (Unavailable("a snapshot is not verified"), "not known", (Limit("object", 0, is_exact=False),)),
    ],
)
def test_a_policy_is_set_or_removed_only_after_the_bytes_that_it_removes_were_named(
    plan: RetentionPlan | Unavailable, said: str, limits: tuple[Limit, ...]
) -> None:
    form = {"policy": "week", "kind": "max_bytes", "amount": "1000"}
    call = call_of(form=form)
    log = call.service.log
    log.plan_retention = AsyncMock(side_effect=[plan, plan, plan, plan])
    log.set_retention = AsyncMock()
    call.service = SimpleNamespace(log=log, read=call.service.read)
    asked = asyncio.run(cast(Any, SET.act(call)))
    assert said in text_of(asked.effect)
    assert asked.limits == limits
    assert "900" in text_of(asked.effect) or not getattr(plan, "remove_through", 0)
    assert not log.set_retention.called
    allowed = {limit.field: str(limit.number) if limit.is_exact else "any number" for limit in limits}
    form |= {"confirm": "set retention", **dict.fromkeys(allowed, "0")}
    if limits:
        assert asyncio.run(cast(Any, SET.act(call))).limits == limits, "fewer than would go"
        assert not log.set_retention.called
    form |= allowed
    assert "keeps the last 1,000 B" in asyncio.run(cast(Any, SET.act(call))).text
    assert log.set_retention.called
    call.query["policy"] = "a-month"
    removed = asyncio.run(REMOVE.form(call))
    assert removed.limits == limits
    assert said in text_of(removed.effect)


def test_a_warning_says_once_that_nothing_is_removed() -> None:
    said = text_of(
        said_of("Nothing is removed: nothing is truncated: the log has no snapshot; `holdfast x` makes one.")
    )
    assert said == "Nothing of the log is removed: the log has no snapshot; <code>holdfast x</code> makes one."
    assert text_of(said_of("nothing is truncated: a")) == "Nothing of the log is removed: a."


def test_a_store_that_does_not_exist_is_said_once_without_actions() -> None:
    page = text_of(asyncio.run(_store(call_of(store="nope"))))
    assert page.count("Not found") == 1
    assert "/store/delete" not in page
    with pytest.raises(InvalidRequest, match="no store has this name"):
        asyncio.run(_store(call_of(store="<script>/..")))


def test_the_actions_of_a_durable_are_before_its_figures_and_its_numbers_lead_on() -> None:
    page = text_of(asyncio.run(_durable(call_of(store="a", durable="w"))))
    assert page.index("/durable/purge") < page.index("Backlog")
    assert 'href="#h-backlog-over-time"' in page
    assert 'id="h-backlog-over-time"' in page
    assert 'href="/messages?store=a&amp;durable=w"' in page


def test_facts_of_a_fate_are_words_and_times() -> None:
    assert "datetime=" in text_of(fact_of("until_ms", 1_795_874_992_326))
    assert fact_of("wait_ms", 30_000) == "30000"
    assert fact_of("parked", True) == "yes"


def test_a_limit_says_that_a_person_may_raise_it() -> None:
    assert "write a larger number" in cast(str, _limit(Limit("message", 3)))


def test_a_lock_says_who_holds_it_before_it_is_stolen() -> None:
    held = effect_of(LOCK, call_of(store="a", map="m", key="k"))
    assert "<strong>desk</strong>" in held
    assert "The lock is" not in effect_of(LOCK, call_of(store="a", map="m", key="old"))
    assert "The lock is" not in effect_of(LOCK, call_of(store="a", map="m", key="free"))


def test_the_cluster_is_changed_only_where_its_form_was_changed() -> None:
    sent: list[object] = []
    now = {"revision": 9, "definition": {"cluster": {"swap": True, "message_limit": 7}}}
    call = call_of(form={"shown": "{swap: true, message_limit: 5}", "parameters": "{swap: false, message_limit: 5}"})

    async def read(_: str) -> Document:
        return cast(Document, now)

    async def change(*given: object) -> Document:
        sent.extend(given)
        return {}

    call.service.read, call.service.change = read, change
    asyncio.run(EDIT_CLUSTER.act(call))
    assert sent == ["PATCH", "/v1/cluster/definition", {"cluster": {"swap": False}}]
    call.form["parameters"] = "{swap: true, message_limit: 6}"
    with pytest.raises(Conflict, match="message_limit"):
        asyncio.run(EDIT_CLUSTER.act(call))


def test_a_suspended_cluster_offers_to_resume_and_says_what_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "another leader" in effect_of(SUSPEND, call_of())
    serves = text_of(asyncio.run(_cluster(call_of())))
    assert "/cluster/suspend" in serves
    assert "/cluster/resume" not in serves
    monkeypatch.setitem(DOCUMENTS, "/v1/cluster", DOCUMENTS["/v1/cluster"] | {"suspended": True})
    suspended = text_of(asyncio.run(_cluster(call_of())))
    assert "/cluster/resume" in suspended
    assert "/cluster/suspend" not in suspended
    assert "another leader" in suspended


def test_what_an_action_says_names_what_came_of_it() -> None:
    call = call_of(form={"name": "monday"})
    call.service.forget = lambda: None
    call.service.stores = SimpleNamespace(cluster_command=AsyncMock(return_value={"path": "/data/monday"}))
    done = asyncio.run(cast(Any, BACKUP.act(call)))
    assert "5 messages are in /data/monday" in done.text


def test_only_the_leader_that_the_form_named_steps_down() -> None:
    first = Member("http://127.0.0.1:1", ALIVE, None, 0.0)
    second = Member("http://127.0.0.1:2", Liveness("another", True, "127.0.0.1:2"), None, 0.0)
    shown = asyncio.run(STEP_DOWN.form(call_of((first,))))
    call = call_of((second,), form={"confirm": "step down", "seen": shown.seen})
    call.service.change = AsyncMock()
    form: Any = asyncio.run(cast(Any, STEP_DOWN.act(call)))
    assert "another" in text_of(form.effect)
    assert not call.service.change.called


def test_what_was_done_is_said_where_its_numbers_cannot_be_read() -> None:
    call = call_of(form={"name": "monday"})
    call.service.forget = lambda: None
    call.service.stores = SimpleNamespace(cluster_command=AsyncMock(return_value={"path": "/data/monday"}))
    call.service.read = AsyncMock(side_effect=Unavailable("the service does not answer"))
    done: Any = asyncio.run(cast(Any, BACKUP.act(call)))
    assert done.text.startswith("Backed up: the messages are in /data/monday")


@pytest.mark.parametrize("address", ["/keys?path=a&self=b", "/keys?self=b"])
def test_a_parameter_may_have_any_name(address: str) -> None:
    assert own_address(address) == address


def test_several_durables_are_rewound_only_if_all_are_there() -> None:
    call = call_of(form={"also": "nope"}, store="orders", durable="work")
    call.service.read = AsyncMock(side_effect=[{}, NotFound("there is no such durable")])
    call.service.stores = SimpleNamespace(rewind=AsyncMock())
    with pytest.raises(NotFound):
        asyncio.run(cast(Any, REWIND.act(call)))
    assert not call.service.stores.rewind.called
