"""Signs of life: what is next to the log, and what is left of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
from tests.unit.commit.builders import genesis, takeover

from holdfast.commit.format.batch import AddressScope, Header
from holdfast.commit.leadership.evidence import ProcessPlace, Sign
from holdfast.commit.leadership.signs import PREFIX, SignReader, Signs, name_of, number_in
from holdfast.errors import Unavailable
from holdfast.objects.memory import MemoryStore
from holdfast.objects.port import CreateAnswer, Unknown
from holdfast.values import LeaderId

SCOPE = AddressScope(b"boot-id-of-tests", 7)
HERE = ProcessPlace(("127.0.0.1:8080",), (SCOPE,))


class Store(MemoryStore):
    """A store that fails as told."""

    def __init__(self) -> None:
        super().__init__()
        self.creates_fail = self.deletes_fail = self.lost = False

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says."""
        if self.creates_fail:
            return Unknown("not now")
        answer = await super().create(key, data)
        return Unknown("the answer was lost") if self.lost else answer

    async def delete(self, *keys: str) -> None:
        """As the port says."""
        if self.deletes_fail:
            raise Unavailable("not now")
        await super().delete(*keys)


def signs_of(store: Store, claim: Header) -> Signs:
    return Signs(store, claim, HERE, 2_000.0)


async def names(store: Store) -> list[str]:
    return [row.key for row in await store.list(PREFIX)]


def test_one_sign_stays_and_says_where_its_leader_is() -> None:
    async def scenario() -> None:
        store, claim = Store(), genesis()
        signs = signs_of(store, claim)
        for number in range(1, 5):
            assert await signs.show()
            assert await names(store) == [name_of(1, number, claim.leader_id.hex())]
        sign = msgspec.json.decode(await store.read((await names(store))[0]), type=Sign)
        assert sign == signs.newest == await SignReader(store).newest(1, claim.leader_id)
        assert (sign.number, sign.interval_ms, sign.address, sign.scope) == (4, 2_000.0, "127.0.0.1:8080", SCOPE)
        assert not await store.list("batches/"), "the log does not grow"

    asyncio.run(scenario())


def test_a_reader_sees_the_newest_sign_of_the_leadership_that_it_asks_for() -> None:
    async def scenario() -> None:
        store, first = Store(), genesis()
        second = takeover(first, "b")
        old, new = signs_of(store, first), signs_of(store, second)
        reader = SignReader(store)
        assert await reader.newest(1, first.leader_id) is None
        await old.show()
        assert (await reader.newest(1, first.leader_id) or old.newest).number == 1
        await old.show()
        assert (await reader.newest(1, first.leader_id) or signs_of(store, first).newest).number == 2
        # A deposed leader that does not know it yet goes on beside the new one.
        await new.show()
        await old.show()
        assert (await reader.newest(second.epoch, second.leader_id)) == new.newest
        assert (await reader.newest(1, first.leader_id)) == old.newest
        assert await reader.newest(second.epoch, LeaderId(bytes(16))) is None

    asyncio.run(scenario())


def test_a_new_leader_removes_what_earlier_ones_left() -> None:
    async def scenario() -> None:
        store, first = Store(), genesis()
        died = signs_of(store, first)
        await died.show()
        store.deletes_fail = True
        await died.show()
        assert len(await names(store)) == 2
        store.deletes_fail = False
        second = takeover(first, "b")
        await signs_of(store, second).show()
        assert await names(store) == [name_of(second.epoch, 1, second.leader_id.hex())]

    asyncio.run(scenario())


def test_what_could_not_be_removed_is_removed_with_a_later_sign() -> None:
    async def scenario() -> None:
        store, claim = Store(), genesis()
        signs = signs_of(store, claim)
        store.deletes_fail = True
        for _ in range(3):
            assert await signs.show(), "it is there all the same"
        assert len(await names(store)) == 3
        store.deletes_fail = False
        await signs.show()
        assert await names(store) == [name_of(1, 4, claim.leader_id.hex())]

    asyncio.run(scenario())


def test_a_sign_whose_answer_was_lost_is_taken_for_shown_when_its_name_is_refused() -> None:
    async def scenario() -> None:
        store, claim = Store(), genesis()
        signs = signs_of(store, claim)
        store.creates_fail = True
        assert not await signs.show() and signs.newest.number == 0
        store.creates_fail, store.lost = False, True
        assert not await signs.show()
        store.lost = False
        assert await signs.show() and signs.newest.number == 1
        assert await names(store) == [name_of(1, 1, claim.leader_id.hex())]

    asyncio.run(scenario())


def test_a_body_that_is_no_sign_and_a_name_of_another_form_are_no_signs() -> None:
    async def scenario() -> None:
        store, claim = Store(), genesis()
        await store.create(f"{PREFIX}0-strange", b"")
        await store.create(name_of(1, 1, claim.leader_id.hex()), b"{}")
        assert await SignReader(store).newest(1, claim.leader_id) is None

    asyncio.run(scenario())
    leader = "ab" * 16
    assert number_in(name_of(3, 9, leader), 3, leader) == 9
    for wrong in ("", name_of(4, 9, leader), name_of(3, 9, "cd" * 16), name_of(3, 9, leader)[:-1]):
        assert number_in(wrong, 3, leader) is None


def test_a_sign_of_an_unknown_place_has_an_unknown_scope() -> None:
    sign = signs_of(Store(), replace(genesis())).newest
    for boot_id, namespace in (("no hex", 7), ("00" * 16, 7), (sign.boot_id, 0)):
        assert not msgspec.structs.replace(sign, boot_id=boot_id, namespace=namespace).scope.is_known()
