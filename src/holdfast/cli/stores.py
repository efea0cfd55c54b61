"""``holdfast stores``: the group of commands for message stores, and those that define and show stores and durables.

``stores_messages`` and ``stores_files`` add the commands for messages and for the files on disk.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import math
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar, cast

import typer

from holdfast.cli.output import Exit, answering, print_json
from holdfast.cli.service import Service, on_service, one_line
from holdfast.errors import Code, Conflict, InvalidRequest, NotFound, PermissionDenied
from holdfast.files.documents import read_document
from holdfast.stores.definitions.cluster import definition_of
from holdfast.values import GivenTwice, pairs_once

if TYPE_CHECKING:
    from holdfast.client.stores import StoreClient

commands = typer.Typer()

PlaceArgument: TypeAlias = Annotated[str, typer.Argument(metavar="STORE/DURABLE", help="A durable of a store.")]
PlacesArgument: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="STORE/DURABLE...", help="Durables: names, or patterns such as 'orders/*'.")
]
DeleteOption: TypeAlias = Annotated[bool, typer.Option("--delete", help="Allow the change to delete messages.")]
YesOption: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Fields: TypeAlias = dict[str, object]
T = TypeVar("T")


@on_service(commands, "ls")
def list_stores(
    service: Service,
    store: Annotated[str | None, typer.Argument(help="List the durables of this store instead.")] = None,
) -> None:
    """List the stores, or the durables of one store, with their counts."""
    with service.store_client() as client:
        document = client.stores() if store is None else client.durables(store)
    columns = ("name", "messages", "bytes") if store is None else ("name", "type", "backlog", "unacknowledged")
    service.show_rows(_with_counts(document["stores" if store is None else "durables"]), columns)


@on_service(commands)
def show(
    service: Service, place: Annotated[str, typer.Argument(metavar="STORE[/DURABLE]", help="What to show.")]
) -> None:
    """Show a store or a durable: its parameters in force and its counts."""
    store, durable = split_optional(place)
    with service.store_client() as client:
        description = client.describe_durable(store, durable) if durable else client.describe_store(store)
    service.show_fields(description)


@on_service(commands)
def define(
    service: Service,
    place: Annotated[
        str | None, typer.Argument(metavar="STORE[/DURABLE]", help="What to define; none with --file.")
    ] = None,
    parameters: Annotated[
        list[str] | None, typer.Argument(metavar="PARAMETER=VALUE...", help="For example type=shared max_delivery=5.")
    ] = None,
    template: Annotated[
        bool, typer.Option("--template", help="Define a template of the store, not a durable.")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--file", help="Replace the whole definition by this JSON, TOML or YAML file.")
    ] = None,
    delete: DeleteOption = False,
) -> None:
    """Define a store, a durable or a template. With --file define everything; what the file does not name is deleted.

    Parameters that are not given get their defaults, also those that were set before; edit keeps them. A change that
    would delete messages needs --delete.

    For example: holdfast stores define orders/work type=shared max_delivery=5 dead_letter_store=dead
    """
    if (file is None) == (place is None):
        raise InvalidRequest("name a store, or give the whole definition with --file")
    store, name = ("", "") if place is None else split_optional(place, template=template)
    with service.store_client() as client:
        if file is not None:
            definition = read_definition(file)
            with hinted("; holdfast stores edit changes only what it names"):
                result = client.define(definition, delete=delete)
            service.show(result, f"defined, revision {result['revision']}")
            return
        assert place is not None, "checked above"
        values = named_once(map(_parameter, parameters or ()), "parameter")
        with hinted("; holdfast stores edit changes only what it names"):
            if not name:
                result = client.define_store(store, values, delete=delete)
            elif template:
                result = client.define_template(store, name, values, delete=delete)
            else:
                result = client.define_durable(store, name, values, delete=delete)
    service.show(result, f"defined {place}")


@on_service(commands)
def edit(
    service: Service,
    place: Annotated[str, typer.Argument(metavar="STORE[/DURABLE]", help="What to change.")],
    parameters: Annotated[list[str], typer.Argument(metavar="PARAMETER=VALUE...", help="For example prefetch=100.")],
    template: Annotated[bool, typer.Option("--template", help="Change a template of the store.")] = False,
    delete: DeleteOption = False,
) -> None:
    """Change only the named parameters. A change that would delete messages needs --delete.

    For example: holdfast stores edit orders/work prefetch=100
    """
    split_optional(place, template=template)
    with service.store_client() as client, hinted():
        values = named_once(map(_parameter, parameters), "parameter")
        result = client.edit(place, values, template=template, delete=delete)
    service.show(result, f"changed {place}")


@on_service(commands)
def rm(
    service: Service,
    places: Annotated[
        list[str], typer.Argument(metavar="STORE[/DURABLE]...", help="Stores or durables: names, or patterns.")
    ],
    yes: YesOption = False,
) -> None:
    """Delete durables or stores with all their messages."""
    for place in places:
        split_optional(place)
    with service.store_client() as client:
        chosen = places_of(client, places)
        described(client, chosen)
        ask_first("delete", chosen, yes=yes)
        for place in chosen:
            store, durable = split_optional(place)
            client.delete_durable(store, durable) if durable else client.delete_store(store)
            service.show({"deleted": place}, f"deleted {place}")


@on_service(commands)
def diff(
    service: Service, file: Annotated[Path, typer.Argument(help="A whole definition as JSON, TOML or YAML.")]
) -> None:
    """Show how a file would change the definition in force; exit code 1 if it would."""
    with service.store_client() as client:
        in_force = cast("Fields", client.definition()["definition"])
        wanted = cast("Fields", client.check_definition(read_definition(file))["definition"])
    changes = difference(in_force, wanted)
    with answering():
        for path, before, after in changes:
            facts = {"path": path, "in_force": before, "file": after}
            service.show(facts, f"{path}: {one_line(before)} -> {one_line(after)}")
    if changes:
        raise typer.Exit(Exit.NO)


@on_service(commands)
def stats(service: Service, store: Annotated[str | None, typer.Argument(help="Only this store.")] = None) -> None:
    """Print the counts of the cluster, or of every durable of a store."""
    with service.store_client() as client:
        document = client.cluster() if store is None else client.durables(store)
    if service.as_json or store is None:
        service.show_fields(document)
        return
    rows = _with_counts(document["durables"])
    service.show_rows(rows, ["name", *(cast("Fields", rows[0].get("counts", {})) if rows else ())])


@on_service(commands)
def status(service: Service) -> None:
    """Show the cluster: its services, its disk and its counts."""
    with service.store_client() as client:
        cluster = client.cluster()
    fields = cluster if service.as_json else {name: str(value) for name, value in cluster.items()}
    service.show_fields(fields)


@on_service(commands)
def history(
    service: Service,
    revision: Annotated[int | None, typer.Argument(help="Print the definition of this revision.", min=1)] = None,
) -> None:
    """List earlier definitions, or print one of them."""
    with service.store_client() as client:
        document = client.history(revision)
    if revision is not None:
        print_json(document["definition"])
        return
    rows = cast("list[Fields]", document["history"])
    if not service.as_json:
        for row in rows:
            row["time"] = datetime.fromtimestamp(cast("int", row["at_ms"]) / 1000, UTC).isoformat(timespec="seconds")
            row["author"] = row["author"] or None
    service.show_rows(rows, ("revision", "time", "author"))


@on_service(commands)
def rollback(
    service: Service,
    revision: Annotated[int, typer.Argument(help="The definition to put in force again.", min=1)],
    delete: DeleteOption = False,
    yes: YesOption = False,
) -> None:
    """Put an earlier definition in force again, under a new revision."""
    ask_first("roll back to revision", [str(revision)], yes=yes)
    with service.store_client() as client, hinted():
        result = client.rollback(revision, delete=delete)
    service.show(result, f"defined, revision {result['revision']}")


# ---- definitions, names and values -----------------------------------------------------------------------------


def read_definition(file: Path) -> Fields:
    """A definition from a file, checked before it is sent. Raises: InvalidRequest with the lines of the problems."""
    document = read_document(file)
    if not isinstance(document.value, dict):
        raise InvalidRequest(f"{file} is not a definition", hint='a map, for example {"stores": {"orders": {}}}')
    definition_of(document.value, document.line_of)
    return cast("Fields", document.value)


def places_of(client: StoreClient, places: Sequence[str], *, durables: bool = False) -> list[str]:
    """The stores and durables that names and patterns (``*``, ``?``, ``[...]``) name, each once.

    Raises: NotFound for a pattern without a match, InvalidRequest for an invalid name.
    """
    names: dict[str, None] = {}
    for place in places:
        store, durable = split_place(place) if durables else split_optional(place)
        if not any(sign in place for sign in "*?["):
            names[place] = None
            continue
        stores = [str(one["name"]) for one in cast("list[Fields]", client.stores()["stores"])]
        matching = fnmatch.filter(stores, store)
        if durable:
            matching = [
                f"{one}/{name}"
                for one in matching
                for name in fnmatch.filter(
                    [str(each["name"]) for each in cast("list[Fields]", client.durables(one)["durables"])], durable
                )
            ]
        if not matching:
            raise NotFound("nothing has a name that matches", pattern=place)
        names |= dict.fromkeys(matching)
    return list(names)


def described(client: StoreClient, places: Sequence[str]) -> dict[str, Fields]:
    """The description of each store and durable, empty without the right to see it. Raises: NotFound."""
    descriptions: dict[str, Fields] = {}
    for place in places:
        store, durable = split_optional(place)
        descriptions[place] = {}
        with contextlib.suppress(PermissionDenied):
            descriptions[place] = client.describe_durable(store, durable) if durable else client.describe_store(store)
    return descriptions


@contextlib.contextmanager
def hinted(more: str = "") -> Generator[None]:
    """Add the option that allows a refused deletion to the error's hint, and ``more``."""
    try:
        yield
    except Conflict as error:
        if error.code is Code.DELETES_MESSAGES:
            error.hint = f"--delete allows it{more}"
        raise


def ask_first(what: str, places: Sequence[str], *, yes: bool) -> None:
    """Ask on a terminal whether to continue. Raises: InvalidRequest without a terminal and without ``yes``."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"--yes is needed to {what} {', '.join(places)}", hint="there is no terminal to ask on")
    if not typer.confirm(f"{what} {', '.join(places)}?", err=True):
        raise typer.Abort


def split_place(place: str) -> tuple[str, str]:
    """A store and a durable. Raises: InvalidRequest.

    >>> split_place("orders/work")
    ('orders', 'work')
    """
    store, _, durable = place.partition("/")
    if not store or not durable or "/" in durable:
        raise InvalidRequest("name a durable as STORE/DURABLE, for example orders/work", place=place)
    return store, durable


def split_optional(place: str, *, template: bool = False) -> tuple[str, str]:
    """A store, and a durable or ""; or a store and a template. Raises: InvalidRequest.

    >>> split_optional("orders"), split_optional("orders/work")
    (('orders', ''), ('orders', 'work'))
    """
    store, slash, name = place.partition("/")
    if not store or "/" in name or (slash and not name):
        raise InvalidRequest(
            f"{place!r} is not a valid place: write STORE or STORE/{'TEMPLATE' if template else 'DURABLE'}",
            hint="a name has letters and digits of any script and . _ - : @ ~, and no slash",
        )
    if template and not name:
        raise InvalidRequest("name a template as STORE/TEMPLATE, for example orders/jobs", place=place)
    return store, name


def parse_value(text: str) -> object:
    """A value on the command line: JSON if it is JSON, otherwise text.

    Raises: InvalidRequest for ``NaN`` or ``1e999``, and for a name that is given twice.

    >>> parse_value("5"), parse_value("100mb"), parse_value('{"kind": ["a", "b"]}')
    (5, '100mb', {'kind': ['a', 'b']})
    """
    try:
        value: object = json.loads(text, object_pairs_hook=pairs_once, parse_constant=_finite, parse_float=_finite)
    except InvalidRequest:
        raise
    except GivenTwice as error:
        raise InvalidRequest(f"a value is ambiguous: {error}", given=text[:80]) from None
    except (ValueError, RecursionError):
        return text
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise InvalidRequest("a value is not a finite number", given=text[:80])
    return number


def named_once(pairs: Iterable[tuple[str, T]], what: str) -> dict[str, T]:
    """What NAME=VALUE arguments give. Raises: InvalidRequest for a name that is given twice."""
    try:
        return pairs_once([*pairs])
    except GivenTwice as error:
        raise InvalidRequest(f"the {what} {error}") from None


def _parameter(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidRequest(f"a parameter is NAME=VALUE, for example prefetch=100, and got {text}")
    return name, parse_value(value)


def difference(before: Mapping[str, object], after: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """The differences as dotted paths in order, with both values; None for an absent one.

    >>> difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}, "d": {}})
    [('a.c', 2, None), ('d', None, {})]
    """
    changes: list[tuple[str, object, object]] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            inner = difference(cast("Mapping[str, object]", old), cast("Mapping[str, object]", new))
            changes += [(f"{name}.{path}", left, right) for path, left, right in inner]
        elif old != new or (name in before) != (name in after):
            changes.append((name, old, new))
    return changes


def _with_counts(documents: object) -> list[Fields]:
    """Documents with their counts among their parameters, for tables."""
    rows = cast("list[Fields]", documents)
    return [{**row, **cast("Fields", row.get("counts", {}))} for row in rows]
