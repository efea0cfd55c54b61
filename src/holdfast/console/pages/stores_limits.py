"""What a limit does that is set below what is there already: a person confirms it with the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.console import units
from holdfast.console.reading.documents import count_of
from holdfast.console.reading.service import Document, document, number
from holdfast.stores.definitions.reader import byte_size

REFUSED: Final = "publishes are refused, and publishers wait, until there are fewer"
NOT_KEPT: Final = "new messages are not kept in this durable until there are fewer, and their publishers get no error"


def _limit(changed: Document, name: str) -> int | None:
    """A limit that a change sets; None for one that it does not set, removes, or that the service will refuse."""
    try:
        return byte_size(changed.get(name)) or None
    except ValueError:
        return None


def _passed(changed: Document, messages: float, size: float, effect: str) -> list[str]:
    lines: list[str] = []
    rows: Sequence[tuple[str, float, Callable[[float], str], str]] = (
        ("message_limit", messages, units.count, units.counted(int(messages), "message")),
        ("bytelimit", size, units.size, units.size(size)),
    )
    for name, used, text, held in rows:
        limit = _limit(changed, name)
        if limit is not None and used >= limit:
            over = (
                f", {text(used - limit)} more than {name} {text(limit)}"
                if used > limit
                else f", as many as {name} allows"
            )
            lines.append(f"It holds {held}{over}: {effect}.")
    return lines


def of_store(changed: Document, part: Document) -> list[str]:
    """What the limits that a change of a store sets do at once."""
    return _passed(changed, count_of(part, "messages"), count_of(part, "bytes"), REFUSED)


def of_durable(changed: Document, part: Document) -> list[str]:
    """The same of a durable. With ``discard: old`` it loses messages, which the service counts and asks about."""
    if (changed.get("discard") or part.get("discard")) == "old":
        return []
    return _passed(changed, count_of(part, "messages"), count_of(part, "bytes"), NOT_KEPT)


def of_cluster(changed: Document, cluster: Document, revisions: int) -> list[str]:
    """The same of the cluster, which has this many ``revisions`` of its definition."""
    lines = _passed(changed, number(cluster.get("messages")), number(cluster.get("bytes")), REFUSED)
    disk, fraction = document(cluster.get("disk")), changed.get("max_disk_fraction")
    used, capacity = number(disk.get("used")), number(disk.get("capacity"))
    if isinstance(fraction, int | float) and used >= fraction * capacity:
        room = units.size(fraction * capacity)
        lines.append(f"The disk has {units.size(used)} in use, and max_disk_fraction allows {room}: {REFUSED}.")
    revisions_max = changed.get("max_deployment_history")
    if isinstance(revisions_max, int) and 0 < revisions_max < revisions:
        gone = units.counted(revisions - revisions_max, "revision")
        lines.append(f"The oldest {gone} of {revisions} are forgotten: the definition cannot be rolled back to them.")
    return lines
