"""What one call on the store asks of etcd, without I/O: each call is a generator that yields requests and gets replies.

``Once`` goes to one member and is never repeated; its reply may be ``NoReply``, after which it may have happened, may
happen later, or never. ``Ask`` may be repeated at another member, and ends with a reply or raises ``Unavailable``.

A create draws a new UPLOAD. Up to ``PART_BYTES`` it is one transaction. A larger one sends its parts one after the
other, then its head:

| transaction | conditions | what it does |
|---|---|---|
| the first part | no head | puts the part and the mark |
| each later part | no head, the mark | puts the part |
| the head | no head, the mark | puts the head, removes the mark |
| the removal of the parts | the mark | removes the parts and the mark |

So while a mark exists its upload has no head, and every part that was acknowledged is there. A part that lands late
finds a head or no mark; a head that lands after the removal finds no mark. A first part that lands late makes a mark
again, which a sweep finds. A mark also makes a sweep cheap: it lists marks, and never the parts of the whole log.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from msgspec import Struct

from holdfast.errors import CorruptData, NotFound, Unavailable
from holdfast.objects.etcd.layout import (
    OBJECT_BYTES_MAX,
    PART_BYTES,
    EtcdPrefix,
    Head,
    after_all,
    decode_head,
    decode_mark,
    encode_mark,
    just_after,
)
from holdfast.objects.etcd.wire import (
    Compact,
    EtcdReply,
    Exists,
    GetKeys,
    Holds,
    PutKey,
    RemoveKey,
    Request,
    RowPage,
    Txn,
)
from holdfast.objects.port import CREATED, CreateAnswer, Created, Listed, Refused, Unknown

OPERATIONS_MAX: Final = 120
"""In one transaction: etcd's ``--max-txn-ops`` is 128 unless it was changed."""
PARTS_AN_ANSWER: Final = 3
PAGE: Final = 1_000
READS_MAX: Final = 5
DELETES_MAX: Final = 5
SWEPT_MAX: Final = 100
LEFT_AFTER_MS: Final = 15 * 60_000.0


class Once(Struct, frozen=True):
    """Send to one member, once."""

    txn: Txn


class Ask(Struct, frozen=True):
    """Send until there is a reply."""

    request: Request


class NoReply(Struct, frozen=True):
    """The reply to ``Once`` did not come, or was an error. ``final``: the same request gets the same error."""

    detail: str
    final: bool = False


T = TypeVar("T")
Effect = Once | Ask
Procedure = Generator[Effect, EtcdReply | NoReply, T]


def create(place: EtcdPrefix, name: str, data: bytes, upload: str) -> Procedure[CreateAnswer]:
    """Create an object. ``upload``: 32 hexadecimal digits that were never used."""
    if len(data) > OBJECT_BYTES_MAX:
        return Unknown(f"an object on etcd has at most {OBJECT_BYTES_MAX} bytes, this one {len(data)}", final=True)
    head = Head.of_new(name, upload, len(data))
    ends = pairwise(head.begin_of(part) for part in range(head.parts + 1))
    parts = [PutKey(key, data[begin:end]) for key, (begin, end) in zip(place.all_parts(name, head), ends, strict=True)]
    no_head, mark = Exists(place.head(name), negated=True), place.mark(upload)
    put_head, look = PutKey(place.head(name), head.encode()), (GetKeys(place.head(name)),)
    if len(data) <= PART_BYTES:
        reply = yield Once(Txn((no_head,), (put_head, *parts), look))
        return _meaning(reply)
    conditions: tuple[Exists, ...] = (no_head,)
    with_it: tuple[PutKey, ...] = (PutKey(mark, encode_mark(name, len(parts))),)
    for part in parts:
        reply = yield Once(Txn(conditions, (part, *with_it), look))
        if isinstance(reply, NoReply) or not reply.succeeded:
            break
        conditions, with_it = (no_head, Exists(mark)), ()
    else:
        reply = yield Once(Txn((no_head, Exists(mark)), (put_head, RemoveKey(mark)), look))
    answer = _meaning(reply)
    if not isinstance(answer, Created):
        try:
            yield from _remove_upload(place, name, upload, len(parts))
        except Unavailable:
            pass  # a sweep finds the mark
    return answer


def _meaning(reply: EtcdReply | NoReply) -> CreateAnswer:
    """The answer of a create whose last transaction got this reply."""
    if isinstance(reply, NoReply):
        return Unknown(reply.detail, final=reply.final)
    if reply.succeeded:
        return CREATED
    return Refused() if reply.pages[0].rows else Unknown("the upload was ended before its head came")


def _remove_upload(place: EtcdPrefix, name: str, upload: str, parts: int) -> Procedure[None]:
    """Remove the parts of an upload, unless it has a head or is gone."""
    mark = place.mark(upload)
    keys = [mark, *(place.part(name, upload, part) for part in range(parts))]
    yield Ask(Txn((Exists(mark),), [RemoveKey(key) for key in keys]))


def read(place: EtcdPrefix, name: str, start: int, length: int | None) -> Procedure[bytes]:
    """Read a part of an object. Raises: NotFound, CorruptData, Unavailable.

    Heads and parts never change, so a hit may come from any member. What is missing may only be late there.
    """
    missed = b""
    for turn in range(READS_MAX):
        any_member = turn == 0
        page = yield from _get(GetKeys(place.head(name), any_member=any_member))
        if not page.rows and any_member:
            page = yield from _get(GetKeys(place.head(name)))
        if not page.rows:
            raise NotFound("there is no such object", key=name)
        value = page.rows[0].value
        if value == missed:  # a head and its parts go in one transaction
            raise CorruptData("an object in etcd has a head, and not all of its parts", key=name)
        data = yield from _read_parts(place, name, decode_head(value, name), start, length, any_member)
        if data is not None:
            return data
        missed = b"" if any_member else value
    raise Unavailable("the object was removed and created again while it was read", key=name)


def _read_parts(
    place: EtcdPrefix, name: str, head: Head, start: int, length: int | None, any_member: bool
) -> Procedure[bytes | None]:
    """The bytes of a range, None if a part is missing. Raises: CorruptData, Unavailable."""
    end = head.size if length is None else min(head.size, start + length)
    if start >= end:
        return b""
    first, last = head.part_at(start), head.part_at(end - 1)
    pieces: list[bytes] = []
    for begin in range(first, last + 1, PARTS_AN_ANSWER):
        upto = min(last, begin + PARTS_AN_ANSWER - 1)
        keys = [place.part(name, head.upload, part) for part in range(begin, upto + 1)]
        page = yield from _get(GetKeys(keys[0], end=just_after(keys[-1]), any_member=any_member))
        if [row.key for row in page.rows] != keys:
            return None
        pieces += [row.value for row in page.rows]
    data, origin = b"".join(pieces), head.begin_of(first)
    if len(data) != head.begin_of(last + 1) - origin:
        raise CorruptData("the parts of an object in etcd do not have the size that its head says", key=name)
    return data[start - origin : end - origin]


def list_objects(place: EtcdPrefix, prefix: str, after: str, limit: int) -> Procedure[list[Listed]]:
    """The rows of a listing. Raises: CorruptData, Unavailable."""
    heads = place.heads
    begin = max(heads + prefix.encode(), just_after(heads + after.encode()) if after else b"")
    end = after_all(heads + prefix.encode())
    rows: list[Listed] = []
    more = begin < end
    while more and len(rows) < limit:
        page = yield from _get(GetKeys(begin, end=end, limit=min(PAGE, limit - len(rows))))
        for row in page.rows:
            name = row.key[len(heads) :].decode("utf-8", "replace")
            rows.append(Listed(name, decode_head(row.value, name).size))
        more = page.more and bool(page.rows)
        begin = just_after(page.rows[-1].key) if more else end
    return rows


def delete(place: EtcdPrefix, names: Sequence[str]) -> Procedure[None]:
    """Remove objects, each with its parts in one transaction. Raises: CorruptData, Unavailable.

    A transaction compares the heads: a name that was removed and created again meanwhile has other parts.
    """
    left = list(dict.fromkeys(names))
    for _ in range(DELETES_MAX):
        changed: list[str] = []
        for begin in range(0, len(left), OPERATIONS_MAX):
            changed += yield from _delete_some(place, left[begin : begin + OPERATIONS_MAX])
        left = changed
        if not left:
            return
    raise Unavailable("objects were created again while they were removed", key=left[0], objects=len(left))


def _delete_some(place: EtcdPrefix, names: Sequence[str]) -> Procedure[list[str]]:
    """Remove at most ``OPERATIONS_MAX`` objects. Returns: those whose transaction was refused."""
    reply = yield Ask(Txn((), [GetKeys(place.head(name)) for name in names]))
    assert isinstance(reply, EtcdReply), "what is asked has a reply"
    groups: list[dict[str, Sequence[bytes]]] = [{}]
    heads: dict[str, bytes] = {}
    operations = 0
    for name, page in zip(names, reply.pages, strict=True):
        if not page.rows:
            continue
        heads[name] = page.rows[0].value
        keys = [place.head(name), *place.all_parts(name, decode_head(heads[name], name))]
        operations += len(keys)
        if operations > OPERATIONS_MAX:
            groups.append({})
            operations = len(keys)
        groups[-1][name] = keys
    changed: list[str] = []
    for group in groups if heads else ():
        conditions = [Holds(place.head(name), heads[name]) for name in group]
        reply = yield Ask(Txn(conditions, [RemoveKey(key) for keys in group.values() for key in keys]))
        if isinstance(reply, EtcdReply) and not reply.succeeded:
            changed += group
    return changed


class SweepEnd(Struct, frozen=True):
    """The end of a sweep: when each upload that stays was first seen, and a mark that cannot be read, if any."""

    since: Mapping[str, float]
    damage: CorruptData | None = None


def sweep(place: EtcdPrefix, since: Mapping[str, float], now_ms: float) -> Procedure[SweepEnd]:
    """Remove the parts of uploads that have had no head for ``LEFT_AFTER_MS``, of the first ``SWEPT_MAX`` uploads.

    ``since`` is that of the sweep before. ``now_ms`` is by the boot clock, because etcd stores no times. A new leader
    begins with nothing seen. Raises: Unavailable.
    """
    page = yield from _get(GetKeys(place.marks, end=after_all(place.marks), limit=SWEPT_MAX))
    marks = {row.key[len(place.marks) :].decode("utf-8", "replace"): row.value for row in page.rows}
    still = {upload: since.get(upload, now_ms) for upload in marks}
    damage = None
    for upload, value in marks.items():
        if now_ms - still[upload] < LEFT_AFTER_MS:
            continue
        try:
            name, parts = decode_mark(value)
        except CorruptData as error:
            damage = error
        else:
            yield from _remove_upload(place, name, upload, parts)
            del still[upload]
    return SweepEnd(still, damage)


def compact(place: EtcdPrefix, compacted: int) -> Procedure[int]:
    """Free what was removed or replaced, up to now. ``compacted``: what this returned before. Raises: Unavailable.

    Nothing of the log reads an older revision. Its members' files keep their size, with room in them.
    """
    reply = yield Ask(GetKeys(place.heads, limit=1))
    assert isinstance(reply, EtcdReply), "what is asked has a reply"
    if reply.revision > compacted:
        yield Ask(Compact(reply.revision))
    return reply.revision


def _get(get: GetKeys) -> Procedure[RowPage]:
    reply = yield Ask(get)
    assert isinstance(reply, EtcdReply), "what is asked has a reply"
    return reply.pages[0]
