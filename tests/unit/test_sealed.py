"""A flipped byte in a record is noticed, or changes nothing."""

from __future__ import annotations

import pytest
from tests.unit.snapshots.test_snapshots import MANIFEST

from holdfast.commit.leadership.role import CopyRole, Promoted, RoleRecords, encode_record
from holdfast.commit.leadership.suspension import Suspension, decode_suspension
from holdfast.errors import CorruptData
from holdfast.retention.policies import Generation, Hold, Policy, decode_generation
from holdfast.sealed import encode_sealed
from holdfast.snapshots.manifest import decode_manifest, encode_manifest
from holdfast.stores import checkpoint_objects as checkpoint

ROLE = CopyRole(
    role="restoring", source_log_id="ab" * 16, truncated_through=7, first_slot="0" * 20, cut_version=9, log_id="cd" * 16
)
PROMOTED = Promoted(log_id="cd" * 16)
GENERATION = Generation(
    number=3, policies={"p": Policy(max_age_seconds=60.0)}, holds={"h": Hold(from_version=1, lasts_ms=2)},
    truncate_through=5, author="a", time_ms=6, nonce="00",
)  # fmt: skip
CHECKPOINT = checkpoint.CheckpointManifest(
    format=1, log_id="ab" * 16, version=7, files=[checkpoint.File(checkpoint.INDEX_NAME, 3, "00" * 32)]
)
SUSPENSION = Suspension(number=2, is_suspended=True, author="ann@host", time_ms=5, nonce="00")
RECORDS = {
    "suspension": (encode_sealed(SUSPENSION), lambda data: decode_suspension("key", data)),
    "snapshot": (encode_manifest(MANIFEST), lambda data: decode_manifest(data, MANIFEST.version)),
    "checkpoint": (encode_sealed(CHECKPOINT), lambda data: checkpoint.decode_manifest(data, 7)),
    "generation": (encode_sealed(GENERATION), lambda data: decode_generation(data, "key")),
    "role": (encode_record(ROLE), lambda data: RoleRecords(role=data).decoded()),
    "promoted": (encode_record(PROMOTED), lambda data: RoleRecords(promoted=data).decoded()),
}


@pytest.mark.parametrize("name", RECORDS)
def test_each_flipped_bit_of_a_record_is_noticed_or_changes_nothing(name: str) -> None:
    data, decode = RECORDS[name]
    whole = decode(data)
    noticed = 0
    for at in range(len(data)):
        for bit in (1, 4, 32):
            changed = bytearray(data)
            changed[at] ^= bit
            try:
                assert decode(bytes(changed)) == whole, f"byte {at} of {bytes(changed)!r}"
            except CorruptData:
                noticed += 1
    assert noticed > len(data), "most bytes matter"


@pytest.mark.parametrize("name", RECORDS)
def test_each_record_that_was_cut_short_is_noticed(name: str) -> None:
    data, decode = RECORDS[name]
    for size in range(len(data) - 1):
        with pytest.raises(CorruptData):
            decode(data[:size])
