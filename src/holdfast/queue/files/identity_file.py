"""``<prefix>-allMeta``, found or made.

Owns: reading it, and writing it whole or not at all. Does not own: its bytes (``identity``).

Failure model: a file that is absent or does not verify is made anew: nothing in the pages depends on it. ``OSError``
from the port passes. One whose name could not be synced is removed again, as far as the disk lets it: the next start
would take it for durable, and after lost power the queue be another one.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.queue.format.identity import IDENTITY_BYTES, Identity, decode_identity, encode_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.queue.files.pages import PageDirectory

__all__ = ["open_identity", "read_identity"]


def read_identity(pages: PageDirectory) -> Identity | None:
    """What the queue is, or None where no file says so."""
    port = pages.port
    try:
        file = port.open(pages.directory, pages.names.identity, write=False)
    except FileNotFoundError:
        return None
    try:
        return decode_identity(port.read(file, 0, IDENTITY_BYTES))
    finally:
        port.close(file)


def open_identity(
    pages: PageDirectory, entropy: Callable[[int], bytes], page_bytes: int, checksum_id: int, serializer: str = ""
) -> Identity:
    """Read what the queue is, or decide it. A queue that records no serializer adopts the one that is given.

    Temporary file, sync, rename, sync of the directory: a crash leaves the old record or the new one.
    """
    found = read_identity(pages)
    if found is not None and (found.serializer or not serializer):
        return found
    port, name = pages.port, pages.names.identity
    if found is not None:
        identity = Identity(found.queue_id, found.page_bytes, found.checksum_id, serializer)
    else:
        identity = Identity(entropy(16), page_bytes, checksum_id, serializer)
    temporary = pages.names.temporary(name)
    pages.remove(temporary)
    file = port.create(pages.directory, temporary)
    try:
        port.write(file, 0, (encode_identity(identity),))
        port.sync_data(file)
    finally:
        port.close(file)
    port.rename(pages.directory, temporary, name)
    try:
        port.sync_directory(pages.directory)
    except BaseException:
        if found is None:  # else either record is true, and the next start that names a serializer writes it again
            with suppress(OSError):
                pages.remove(name)
        raise
    return identity
