"""Small logs and requests for the laws of the commit log."""

from __future__ import annotations

from dataclasses import replace

from holdfast.commit.format.batch import (
    FIRST_SLOT,
    Header,
    Kind,
    LoggedTransaction,
    encode_body,
    encode_object,
    jump,
    object_name,
)
from holdfast.commit.format.chain import next_slot
from holdfast.commit.format.transaction import Precondition, Transaction, Write
from holdfast.commit.leadership.claims import Frontier, Identity, claim_header
from holdfast.commit.stages.events import CommitEntry, Put
from holdfast.commit.stages.pipeline import Pipeline, PipelineRules
from holdfast.values import Instant, LeaderId, LogId, Slot, Version

LOG_ID = LogId((10**12 - 10**8).to_bytes(16, "big"))
BASE = 100_000_000
"""What ``first_base`` makes of that id."""


def identity(name: str = "a") -> Identity:
    return Identity(LeaderId(name.encode().ljust(16, b".")), name.encode().ljust(32, b"-"), f"{name}:8080")


def genesis(name: str = "a") -> Header:
    who = identity(name)
    return claim_header(
        Frontier(FIRST_SLOT, None, 1), who, nonce=who.nonce_seed[:16], log_id=LOG_ID, now=Instant(0.0, 1_000)
    )


def takeover(before: Header, name: str, *, slot: int | None = None) -> Header:
    """The claim that follows ``before``."""
    who = identity(name)
    frontier = Frontier(next_slot(before) if slot is None else Slot(slot), before, before.epoch + 1)
    return claim_header(frontier, who, nonce=who.nonce_seed[:16], log_id=LOG_ID, now=Instant(0.0, 2_000))


def record(head: Header, claim: Header, *versions: int, kind: Kind = Kind.DATA, **changes: object) -> Header:
    """The data object that follows ``head`` in the reign of ``claim``, with transactions at ``versions``."""
    slot = next_slot(head)
    body = encode_body(logged(*versions))
    settled = versions or (head.last_version,)
    header = Header(
        kind=kind,
        log_id=head.log_id,
        slot=slot,
        claim=claim.slot,
        prev=head.slot,
        epoch=claim.epoch,
        leader_id=claim.leader_id,
        nonce=slot.to_bytes(16, "little"),
        first_version=Version(settled[0]),
        last_version=Version(settled[-1]),
        prev_version=head.last_transaction_version,
        window_floor=head.window_floor,
        durable=head.slot,
        truncated_through=head.truncated_through,
        time_ms=head.time_ms + 1,
        lived_ms=head.lived_ms + 1,
        boot_ms=head.boot_ms + 1,
        clock_steps=head.clock_steps,
        address=claim.address,
        transactions=len(versions),
        body_length=len(body),
    )
    return replace(header, **changes)  # type: ignore[arg-type]


def logged(*versions: int) -> list[LoggedTransaction]:
    return [
        LoggedTransaction(version, f"id-{version}", version - 1, [Write(b"key", b"%d" % version)], [])
        for version in versions
    ]


def stored(header: Header, *versions: int) -> bytes:
    return encode_object(header, encode_body(logged(*versions)))


def rows(*headers: Header) -> list[tuple[str, int]]:
    """What a LIST shows of these objects."""
    return [(object_name(header.slot), header.object_bytes()) for header in sorted(headers, key=lambda h: h.slot)]


def bytes_of(*headers: Header) -> dict[Slot, bytes]:
    """The first 512 bytes of each object; bodies are not looked at by recovery."""
    return {header.slot: encode_object(replace(header, transactions=0))[:512] for header in headers}


def txn(
    *keys: bytes,
    request_id: str | None = None,
    at: int | None = None,
    reads: list[Precondition] | None = None,
    value: bytes = b"v",
) -> Transaction:
    return Transaction([Write(key, value) for key in keys or (b"key",)], reads or [], request_id, None, at)


def entry(request: Transaction | None = None) -> CommitEntry:
    return CommitEntry(request or txn(), lambda _: None)


def at(ms: float) -> Instant:
    return Instant(ms, 1_700_000_000_000 + int(ms))


def pipeline(**rules: object) -> Pipeline:
    """A reign that begins at genesis, at instant 0."""
    return Pipeline(genesis(), identity().nonce_seed, PipelineRules(**rules), at(0))  # type: ignore[arg-type]


def puts(effects: list[object]) -> list[Put]:
    return [effect for effect in effects if isinstance(effect, Put)]


def of(kind: type, effects: list[object]) -> list[object]:
    return [effect for effect in effects if isinstance(effect, kind)]


FIRST_DATA = jump(FIRST_SLOT)
