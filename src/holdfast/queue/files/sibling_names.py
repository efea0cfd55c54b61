"""Queues in one directory: which names of queues, consumers and work queues exclude one another.

Owns: the checks, made before a file is. Does not own: how files are called (``file_names``), locks (``cursor_file``).

Failure model: reads only; ``InvalidRequest`` that names the queue in the way. Most names of files tell by themselves
whose they are: behind the last hyphen stands a word without one, so what is before it is the queue. Left are those that
carry a name of their own, which may have hyphens:

- ``orders-eu-billing.cursor`` is ``eu-billing`` of ``orders`` and ``billing`` of ``orders-eu``. Whoever is there first
  has it: the consumer is refused where the queue is there, the queue where the cursor is.
- ``orders-eu.work`` and ``orders-eu-dead`` are queues of the work queue ``eu``. The first is made by it alone. The
  second is for everybody to read, and neither is made where it would be the other's.

Two processes that make a queue and such a consumer in the same millisecond may both succeed: the names are looked at,
and not locked.
"""

from __future__ import annotations

from holdfast.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.queue.files.pages import PageDirectory

__all__ = ["check_name", "check_new_queue", "other_owner"]

NAME_BYTES_MAX = 100
_IDENTITY = "-allMeta"
_CURSOR = ".cursor"
_WORK = ".work"
_DEAD = "-dead"


def check_name(pages: PageDirectory, name: object, *, of_work_queue: bool) -> str:
    """Refuse a name that cannot be, or whose files belong to another queue in this directory. Raises:
    ``InvalidRequest``."""
    hint = f"1 to {NAME_BYTES_MAX} bytes in UTF-8, of any characters but / and NUL"
    try:
        fits = isinstance(name, str) and 0 < len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        fits = False
    if not isinstance(name, str) or not fits or "/" in name or "\0" in name:
        raise InvalidRequest("this cannot be the name of a consumer or work queue", hint=hint, facts={"name": name})
    files = frozenset(pages.port.names(pages.directory))
    prefix = pages.names.prefix
    owner = other_owner(prefix, name, files)
    if owner is None and of_work_queue:
        mine = f"{prefix}-{name}"
        # Its own have been made by a start that made the other two before.
        if f"{mine}{_DEAD}{_IDENTITY}" in files and not {f"{mine}{_CURSOR}", f"{mine}{_WORK}{_IDENTITY}"} & files:
            owner = mine + _DEAD
    if owner is not None:
        raise InvalidRequest("this name belongs to another queue here", name=name, queue=owner)
    return name


def other_owner(prefix: str, name: str, files: Collection[str]) -> str | None:
    """The queue, other than ``prefix``, whose consumer's the cursor of ``name`` would be.

    >>> other_owner("orders", "eu-billing", ["orders-eu-allMeta"])
    'orders-eu'
    >>> other_owner("orders", "eu", ["orders-eu-allMeta"])
    """
    parts = name.split("-")
    for count in range(1, len(parts)):
        other = "-".join((prefix, *parts[:count]))
        if other + _IDENTITY in files:
            return other
    return None


def check_new_queue(pages: PageDirectory) -> None:
    """Refuse to make a queue, where it is not there yet, whose name belongs to a consumer or work queue of another.

    Raises: ``InvalidRequest``.
    """
    name, found = pages.names.prefix, pages.files()
    if name + _IDENTITY in found or pages.known_numbers():
        return
    files = frozenset(found)
    work = name.removesuffix(_WORK)
    if work != name and "-" in work:
        raise InvalidRequest("names that end like this are those of work queues", queue=name, ending=_WORK)
    if name.endswith(_DEAD) and f"{name.removesuffix(_DEAD)}{_WORK}{_IDENTITY}" in files:
        raise InvalidRequest("this name is that of a work queue's dead letters", queue=name)
    taken = [file for file in files if file.startswith(f"{name}-") and file.endswith(_CURSOR)]
    parts = name.split("-")
    owners = ["-".join(parts[:count]) for count in range(1, len(parts))]
    owner = next((other for other in owners if other + _IDENTITY in files), None)
    if taken and owner is not None:
        raise InvalidRequest("consumers of another queue have this name", queue=name, owner=owner, file=min(taken))
