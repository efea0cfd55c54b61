"""What a page says of a token that may not see or do something."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.console.application import _form
from holdfast.console.call import Action, Form
from holdfast.console.frame import state_of
from holdfast.console.html import text_of
from holdfast.console.pages.keys import EDIT
from holdfast.console.pages.overview import _health
from holdfast.console.pages.stores_acts import DEFINE_STORE
from holdfast.console.reading.service import NEED_ROLE, Document, WatchedService
from holdfast.console.reading.watcher import Watcher
from holdfast.errors import Code, InvalidRequest, PermissionDenied

ROLES = {NEED_ROLE["admin"]: 3, NEED_ROLE["write"]: 2}


def service_of(held: int) -> WatchedService:
    """A service whose token has a role."""

    class Some(WatchedService):
        async def read(self, target: str, *, member: str = "") -> Document:
            if held < ROLES[target]:
                raise PermissionDenied(f"this token lacks the role {ROLES[target]}")
            if target == NEED_ROLE["write"]:
                raise InvalidRequest("a parameter is missing")
            return {}

    return Some(["http://127.0.0.1:1"], "token")


@pytest.mark.parametrize(
    ("held", "action", "said"),
    [(1, EDIT, True), (2, EDIT, False), (2, DEFINE_STORE, True), (3, DEFINE_STORE, False)],
)
def test_a_form_says_that_the_token_lacks_the_role_before_it_is_filled(held: int, action: Action, said: bool) -> None:
    async def form(_: object) -> Form:
        return Form("", "Do it", "/")

    async def scenario() -> str:
        service = service_of(held)
        call: Any = SimpleNamespace(service=service, form={}, query={}, path="/", session=SimpleNamespace(csrf="x"))
        shown = Action(action.path, action.title, action.section, form, cast(Any, None), action.needs)
        try:
            return text_of(await _form(shown, call))
        finally:
            await service.aclose()

    page = asyncio.run(scenario())
    assert ("The service will refuse this" in page) == said
    assert ("unless a role of the stores" in page) == (said and action is DEFINE_STORE)


def test_an_overview_without_rights_says_so_and_does_not_wait() -> None:
    watcher = Watcher(WatchedService(["http://127.0.0.1:1"], None))
    assert "Looking" in str(_health(watcher))
    watcher.refused = True
    watcher.problem = PermissionDenied("a valid bearer token is needed", code=Code.UNAUTHENTICATED, hint="send a; b")
    shown = str(_health(watcher))
    assert "Looking" not in shown
    assert "--token-file" in shown
    assert "send a" not in shown, "the hint is for programs"
    assert "--token-file" in str(state_of(cast(Any, SimpleNamespace(watcher=watcher))))
