"""A token with key prefixes reaches no message of a store, whatever rights the store's definition gives it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Sequence
from types import ModuleType

import pytest
from tests.one_line_mutants import mutated

from holdfast.commit.format.transaction import Transaction
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import PermissionDenied
from holdfast.server import gateway
from holdfast.server.gateway import Gateway, GatewayLimits
from holdfast.server.http.auth import Authenticator, Grant, Role
from holdfast.server.http.key_scope import KeyScope

SCOPED, WHOLE = b"Bearer scoped-token-0123456789", b"Bearer whole-token-0123456789"


class EveryRight:
    """Stores whose definition lets every caller do everything; what was asked of them is in ``asked``."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def watch(self, authorization: bytes | None, stores: Sequence[str]) -> EveryRight:
        self.asked.append(stores)
        return self

    def read_parts(self, txn: object, authorization: bytes | None, wire_format: object) -> tuple[object, bytes]:
        self.asked.append(txn)
        return self, b""


@contextlib.contextmanager
def refusals(text: str) -> Generator[None]:
    """A block that may be refused with these words."""
    caught: PermissionDenied | None = None
    try:
        yield
    except PermissionDenied as error:
        caught = error
    assert caught is None or caught.message == text


def reached(code: ModuleType, authorization: bytes) -> list[object]:
    """What of the stores this caller reaches, by a change stream and by a commit."""

    async def ask() -> list[object]:
        scoped = Grant(Role.WRITE, scope=KeyScope((b"own/",)))
        tokens = {SCOPED.decode()[7:]: scoped, WHOLE.decode()[7:]: Grant(Role.WRITE)}
        front: Gateway = code.Gateway(limits=GatewayLimits(), authenticator=Authenticator(tokens))
        stores = EveryRight()
        front.stores = stores  # type: ignore[assignment]
        with refusals("a token with key prefixes may not name stores"):
            front.shown_stores(authorization, ["orders"])
        entry = CommitEntry(Transaction([]), lambda _: None)
        refused = front.read_parts(entry, authorization, None)  # type: ignore[arg-type]
        assert refused is None or refused.message == "a token with key prefixes may not name stores in a commit"
        return stores.asked

    return asyncio.run(ask())


def test_a_token_with_key_prefixes_names_no_store_in_a_stream_or_a_commit() -> None:
    assert reached(gateway, SCOPED) == []
    assert len(reached(gateway, WHOLE)) == 2


CHECK = "if not self.authenticator.scope_of(authorization).is_everything:\n            "


@pytest.mark.parametrize(
    "guarded", ['raise PermissionDenied("a token with key', 'return PermissionDenied("a token with key']
)
def test_a_gateway_without_one_of_its_checks_is_noticed(guarded: str) -> None:
    broken = mutated(gateway, CHECK + guarded, f"if False:\n            {guarded}")
    assert len(reached(broken, SCOPED)) == 1
