"""Backups of the stores: made while the service works, verified, and restored.

1. a checkpoint is written, and no other until the end, so that no page that the index needs is removed;
2. the index of that checkpoint is copied;
3. the log's write position is copied, then its pages in order: a page holds at least what the position says. The end
   may be torn, as after a crash, and recovery takes the whole frames.

So a backup has every command that was replied to before it was requested, and a prefix of the later ones. It is valid
once its manifest ``backup.json`` is there, which is written last and synced: ``{"format": 1, "frame": n, "at_ms": t,
"files": {name: [bytes, crc32]}}``. Restoring checks every checksum first and writes into an empty directory only; after
an interrupted restore a marker keeps the directory from being opened.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal

import msgspec

from holdfast.errors import CorruptData, InvalidRequest, NotFound
from holdfast.files.durable_directory import make_durable_directory, replace_durably, sync_directory, sync_tree
from holdfast.files.private_files import private
from holdfast.files.temporary_files import temporary_directory
from holdfast.stores.clock import Anchor, write_anchor
from holdfast.stores.storage.frames import decode_frame
from holdfast.stores.storage.index import INDEX_NAME, draw_history
from holdfast.stores.storage.log import MessageLog
from holdfast.stores.storage.storage import MANIFEST_NAME, UNFINISHED_NAME, Storage, require_stores
from holdfast.stores.values.ports import BLOCK_MESSAGES

CHUNK_BYTES: Final = 1 << 20


class BackupManifest(msgspec.Struct, frozen=True):
    """What is in a copy: the last frame of its index and when that was, and each file's bytes and CRC-32."""

    frame: int
    at_ms: int
    files: dict[str, tuple[int, int]]
    format: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read and is valid."""

    stores: int
    frames: int
    messages: int
    bytes: int
    index: bool = True
    """Whether there was an index; else the state was made of the log alone, as a start would."""
    damaged: int = 0
    """Frames that cannot be read, and that nothing which is kept needs: for example, what a repair has left."""


def copy_stores(storage: Storage, target: str) -> BackupManifest:
    """Copy the files of open stores, on a thread, while no checkpoint is taken.

    *Raises*: ``InvalidRequest`` if ``target`` has files; ``OSError``, after which it has no manifest.
    """
    _make_empty(target)
    loaded = storage.index.load()
    if loaded is None:
        raise InvalidRequest("there is no checkpoint to copy yet", target=target)
    needed = _log_files(storage.log)
    index = os.path.join(target, INDEX_NAME)
    storage.index.copy_to(index)
    files = {INDEX_NAME: _checksum(index)}
    source = storage.log.directory
    # Pages that were there before the index was copied must be there still: it may need them.
    for name in dict.fromkeys([*needed, *_log_files(storage.log)]):
        try:
            files[name] = _copy(os.path.join(source, name), os.path.join(target, name))
        except FileNotFoundError:
            if not name.endswith(".idx"):
                raise  # a missing index of a page is made again, a page is not
    manifest = BackupManifest(loaded.frame, loaded.at_ms, files)
    sync_tree(target)
    replace_durably(os.path.join(target, MANIFEST_NAME), msgspec.json.encode(manifest))
    return manifest


def _log_files(log: MessageLog) -> list[str]:
    """The write position before the pages, and these in order."""
    pages = log.queue.pages
    numbers = pages.numbers()
    names = [pages.names.identity, pages.names.write_meta]
    return names + [name for number in numbers for name in (pages.names.page(number), pages.names.index(number))]


def restore(source: str, directory: str) -> BackupManifest:
    """Restore a copy into an empty directory, from which the stores are then opened.

    *Raises*: ``NotFound`` if ``source`` is not a whole copy; ``CorruptData`` if a file of it is damaged;
    ``InvalidRequest`` if ``directory`` has files; ``OSError``.
    """
    manifest = check_copy(source)
    _make_empty(directory)
    unfinished = os.path.join(directory, UNFINISHED_NAME)
    replace_durably(unfinished, b"")
    for name in manifest.files:
        _copy(os.path.join(source, name), os.path.join(directory, name))
    # What was stored after the copy is not in it, and its numbers are given out again.
    draw_history(os.path.join(directory, INDEX_NAME))
    # The true age of the copy is unknown: deadlines go on from the copy's time.
    write_anchor(directory, Anchor(manifest.at_ms, "", (0, 0)))
    sync_tree(directory)
    os.unlink(unfinished)
    sync_directory(directory)
    return manifest


def check_copy(source: str) -> BackupManifest:
    """Read every file of a copy against its manifest. *Raises*: ``NotFound``, ``CorruptData``, ``OSError``."""
    try:
        with open(os.path.join(source, MANIFEST_NAME), "rb") as file:
            manifest = msgspec.json.decode(file.read(), type=BackupManifest)
    except FileNotFoundError as error:
        stores = os.path.exists(os.path.join(source, INDEX_NAME))
        raise NotFound(
            "the backup of stores is incomplete",
            path=source,
            missing=MANIFEST_NAME,
            hint="this looks like stores, not like a backup: a service can serve it as it is" if stores else "",
        ) from error
    except msgspec.DecodeError as error:
        raise CorruptData("the manifest of the backup is damaged or of a later version", path=source) from error
    for name, expected in manifest.files.items():
        if name != os.path.basename(name):
            raise CorruptData("a backup has no folders", file=name)
        try:
            actual = _checksum(os.path.join(source, name))
        except FileNotFoundError as error:
            raise CorruptData("a file of the backup is missing", file=name) from error
        if actual != expected:
            raise CorruptData("a file of the backup is damaged", file=name, bytes=actual[0], expected=expected[0])
    return manifest


def verify(directory: str) -> Verified:
    """Read stores that are not in use, or a copy, from end to end; changes nothing.

    It checks the copy's checksums, the index, every frame of the log (a damaged one that is not needed is counted),
    that every kept message can be read, that replayed commands give their recorded results, and the state's invariants.
    Without an index the state is made of the log alone. *Raises*: ``CorruptData``; ``NotFound``; ``OSError``. *Cost*:
    reads everything twice.
    """
    if os.path.exists(os.path.join(directory, MANIFEST_NAME)):
        check_copy(directory)
    require_stores(directory)
    has_index = os.path.exists(os.path.join(directory, INDEX_NAME))
    if has_index:
        return _read_all(Storage.open(directory, read_only=True), has_index=True)
    with temporary_directory("holdfast-verify-") as made:
        return _read_all(Storage.open(directory, read_only=True, index_directory=made), has_index=False)


def _read_all(storage: Storage, *, has_index: bool) -> Verified:
    with closing(storage):
        storage.index.check()
        storage.state.check()
        messages = _check_messages(storage)
        log = storage.log
        frames = total = 0
        for number, data in log.readable(log.first, log.last):
            decode_frame(data, number)
            frames += 1
            total += len(data)
        damaged = log.last - log.first + 1 - frames
        return Verified(len(storage.state.stores), frames, messages, total, has_index, damaged)


def _check_messages(storage: Storage) -> int:
    count = 0
    for store, held in storage.state.stores.items():
        for number in range(held.counts.next_seq // BLOCK_MESSAGES + 1):
            block = storage.index.blocks.get(store, number)
            if block is None:
                continue
            first = number * BLOCK_MESSAGES
            expected = [first + offset for offset, references in enumerate(block.references) if references]
            readable = {kept.seq for kept in storage.messages.read(store, first, first + BLOCK_MESSAGES - 1)}
            missing = [seq for seq in expected if seq not in readable]
            if missing:
                raise CorruptData(
                    "a kept message is not in the log", store=store, seq=missing[0], messages=len(missing)
                )
            count += len(expected)
    return count


def _make_empty(directory: str) -> None:
    make_durable_directory(directory)
    if os.listdir(directory):
        raise InvalidRequest("the directory has files already", path=directory, hint="name an empty or a new one")


def _copy(source: str, target: str) -> tuple[int, int]:
    with open(source, "rb") as reader, open(target, "xb", opener=private) as writer:
        return _read(reader, writer.write)


def _checksum(path: str) -> tuple[int, int]:
    with open(path, "rb") as reader:
        return _read(reader, len)


def _read(reader: BinaryIO, take: Callable[[bytes], int]) -> tuple[int, int]:
    size = check = 0
    while chunk := reader.read(CHUNK_BYTES):
        size += take(chunk)
        check = zlib.crc32(chunk, check)
    return size, check
