"""The commands of ``holdfast stores`` for messages and for the keys of maps.

``tail`` acknowledges a message after it was printed; a message that was not printed is delivered again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, cast

import typer

from holdfast.cli.options import EncodingOption, TextForm, items_max, parse_bytes
from holdfast.cli.output import Exit, base64_text, flush_output, print_json, print_line, printable, readable
from holdfast.cli.service import STREAM_SECONDS, Service, on_service
from holdfast.cli.stores import (
    PlaceArgument,
    PlacesArgument,
    YesOption,
    ask_first,
    commands,
    described,
    named_once,
    parse_value,
    places_of,
    split_place,
)
from holdfast.errors import Code, HoldfastError, InvalidRequest, NotFound, OutcomeUnknown, PermissionDenied, Unavailable

if TYPE_CHECKING:
    from holdfast.client.stores import Delivery, KeyChange, Receipt, Sent, StoreClient, Subscriber
    from holdfast.wire.parts import FieldValue

DELIVERY_SECONDS: Final = 0.5
T = TypeVar("T")
MatchOption: TypeAlias = Annotated[
    str | None, typer.Option("--match", metavar="JSON", help='Only messages that match, for example \'{"kind": "a"}\'.')
]
WaitOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--wait", min=0, max=86_400, metavar="SECONDS", help="Stop when nothing came for this time after connecting."
    ),
]


@on_service(commands)
def publish(
    service: Service,
    store: Annotated[str, typer.Argument(help="The store.")],
    bodies: Annotated[
        list[str] | None, typer.Argument(metavar="BODY...", help="Messages; without any, the lines of standard input.")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", "-f", metavar="NAME=VALUE", help="A field of each message; repeatable."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The key of each message.")] = None,
    ttl_ms: Annotated[int, typer.Option("--ttl-ms", min=0, help="How long it is kept; 0 means always.")] = 0,
    deliver_at_ms: Annotated[
        int, typer.Option("--deliver-at-ms", min=0, help="Not before this time (milliseconds since 1970).")
    ] = 0,
    encoding: EncodingOption = TextForm.TEXT,
) -> None:
    """Publish messages and wait until the store has them.

    Stops at the first message that the store refuses, and reports how many it kept; later messages are not kept.

    For example: holdfast stores publish orders hello -f kind=a
    """
    from holdfast.client.protocol.stores.messages import publish_request
    from holdfast.client.stores import PublisherOptions
    from holdfast.wire.parts import Message

    fields = named_once(map(_field, field or ()), "field")
    # Refuse bad fields here, not in a thread of the publisher.
    publish_request(store, "", [Message(b"", fields, key, 0, ttl_ms, deliver_at_ms)])
    options = PublisherOptions(retry_duration=service.seconds())
    kept = _Kept()
    notice = service.notice()
    try:
        with (
            # A person who types the messages does not wait for the service.
            service.store_client() if bodies else service.store_stream_client(notice) as client,
            # With numbers of its own the publisher ends at the first failure, so --timeout is waited once.
            client.publisher(
                store, publisher_id=f"publish-{secrets.token_hex(16)}", next_seq=1, options=options
            ) as publisher,
        ):
            for body in _bodies(bodies, encoding):
                kept.sent(publisher.send(body, fields=fields, key=key, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms))
            publisher.flush()
    except HoldfastError as error:
        kept.count()
        error.fields = {**error.fields, **kept.fields}
        raise
    except KeyboardInterrupt:
        kept.count()
        text = f"holdfast: interrupted, kept {kept.messages}"
        sys.stderr.write((json.dumps({"interrupted": kept.fields}) if service.as_json else text) + "\n")
        raise
    kept.count()
    if not kept.messages:
        raise InvalidRequest(
            "nothing was published: there is no BODY, and standard input had no line",
            hint="holdfast stores publish orders hello, or: printf 'one\\ntwo\\n' | holdfast stores publish orders",
        )
    published = f"published {kept.messages}, numbers {kept.first_seq} to {kept.last_seq}"
    try:
        if service.as_json:
            numbers = {"first_seq": kept.first_seq, "last_seq": kept.last_seq}
            print_json({"messages": kept.messages, **numbers, "unmatched": kept.unmatched, "discarded": kept.discarded})
        else:
            print_line(published)
            if kept.unmatched:
                print_line(f"no durable wanted {kept.unmatched} of them: they are not kept")
            if kept.discarded:
                print_line(f"limits of durables discarded {kept.discarded} messages")
        flush_output()
    except Unavailable as error:
        # The publish has succeeded, so not the exit code for "try again later".
        raise OutcomeUnknown(f"{published}, which could not be written: {error.statement()}") from error


@on_service(commands)
def tail(
    service: Service,
    place: PlaceArgument,
    subscriber: Annotated[str | None, typer.Option("--subscriber", help="The subscriber's name.")] = None,
    template: Annotated[str | None, typer.Option("--template", help="Create the durable from this template.")] = None,
    matcher: Annotated[
        str | None, typer.Option("--matcher", metavar="JSON", help="The matcher of a durable that a template creates.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The key of a last-value durable.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Stop after this many messages; 0 means no limit.")
    ] = 0,
    wait: WaitOption = None,
    acknowledge: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Acknowledge printed messages, or leave them to be delivered again.")
    ] = True,
    reject: Annotated[bool, typer.Option("--reject", help="Send printed messages to the dead letters.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take a standard durable from the subscriber that has it.")
    ] = False,
) -> None:
    """Subscribe: print each message as it is delivered, and acknowledge it. For a map use watch."""
    from holdfast.client.stores import SubscriberOptions

    store, durable = split_place(place)
    wanted = _matcher("--matcher", matcher)
    notice = service.notice(STREAM_SECONDS)
    options = SubscriberOptions(explicit_ack=True, retry_duration=service.seconds(STREAM_SECONDS))
    about = {"subscriber": subscriber, "template": template, "matcher": wanted, "key": key, "take_over": take_over}
    with (
        service.store_stream_client(notice) as client,
        _subscriber_of_messages(client, store, durable, options=options, **about) as messages,
    ):
        for message in islice(_until_quiet(messages.receive, lambda: messages.is_attached, wait), items_max(limit)):
            service.show(message_fields(message), message_text(message))
            flush_output()
            if reject:
                messages.reject(message)
            elif acknowledge:
                messages.acknowledge(message)


@on_service(commands)
def watch(
    service: Service,
    place: Annotated[str, typer.Argument(metavar="STORE/MAP", help="A map of a store.")],
    key: Annotated[str | None, typer.Option("--key", help="Only this key.")] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Only keys with this prefix.")] = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Stop after this many changes; 0 means no limit.")
    ] = 0,
    wait: WaitOption = None,
) -> None:
    """Print the keys of a map, and then each change."""
    from holdfast.client.stores import SubscriberOptions

    store, name = split_place(place)
    notice = service.notice(STREAM_SECONDS)
    options = SubscriberOptions(retry_duration=service.seconds(STREAM_SECONDS))
    with (
        service.store_stream_client(notice) as client,
        client.map(store, name).watch(key=key, prefix=prefix, options=options) as changes,
    ):
        for change in islice(_until_quiet(changes.receive, lambda: changes.is_current, wait), items_max(limit)):
            print_json(change_fields(change)) if service.as_json else print_line(change_text(change))
            flush_output()


@on_service(commands)
def browse(
    service: Service,
    place: PlaceArgument,
    after: Annotated[int, typer.Option("--after", min=0, help="Start after this number.")] = 0,
    match: MatchOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most this many; 0 means all.")] = 100,
    parked: Annotated[
        bool, typer.Option("--parked", help="Only messages that were delivered too often and are parked.")
    ] = False,
) -> None:
    """Print the messages that a durable keeps, without consuming them."""
    store, durable = split_place(place)
    wanted = _matcher("--match", match)
    with service.store_client() as client:
        messages = client.browser(store, durable, match=wanted, after=after, parked=parked)
        for message in islice(messages, items_max(limit)):
            print_json(message_fields(message)) if service.as_json else print_line(message_text(message))


@on_service(commands)
def purge(service: Service, places: PlacesArgument, yes: YesOption = False) -> None:
    """Delete every message that the durables keep."""
    for place in places:
        split_place(place)
    with service.store_client() as client:
        chosen = places_of(client, places, durables=True)
        described(client, chosen)
        ask_first("purge", chosen, yes=yes)
        for place in chosen:
            gone = client.purge(*split_place(place))
            facts = {"durable": place, "messages": gone.messages, "bytes": gone.bytes}
            service.show(facts, f"purged {gone.messages} messages, {gone.bytes} bytes of {place}")


@on_service(commands)
def explain(
    service: Service,
    store: Annotated[str, typer.Argument(help="The store.")],
    seq: Annotated[int, typer.Argument(help="The message's number.", min=1)],
) -> None:
    """Show the fate of a message in every durable of its store."""
    with service.store_client() as client:
        document = client.explain(store, seq)
    if service.as_json:
        print_json(document)
        return
    for durable in cast("list[dict[str, object]]", document["durables"]):
        facts = [
            f"{name}={json.dumps(value)}" for name, value in durable.items() if name not in ("name", "type", "fate")
        ]
        print_line(" ".join([f"{durable['name']}: {durable['fate']}", *facts]))


@on_service(commands)
def redeliver(
    service: Service,
    place: PlaceArgument,
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="SEQ...", help="Only these numbers, or ranges as 7-9.")
    ] = None,
    match: MatchOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most this many; 0 means all.")] = 0,
) -> None:
    """Deliver parked messages again, or send dead letters back to where they came from."""
    store, durable = split_place(place)
    wanted = _matcher("--match", match)
    ranges = [_range(text) for text in messages or ()]
    with service.store_client() as client:
        result = client.redeliver(store, durable, ranges, match=wanted, limit=limit or None)
    reason = "" if result.messages or result.left else "no message that was asked for is parked or a dead letter"
    if service.as_json:
        print_json({"redelivered": result.messages, "left": result.left, **({"reason": reason} if reason else {})})
        return
    print_line(f"redelivered {result.messages} messages")
    if reason:
        print_line(f"{reason}: holdfast stores browse {place} --parked lists what is parked")
    for reason, count in sorted(result.left.items()):
        print_line(f"left {count}: {reason}")


def _range(text: str) -> tuple[int, int]:
    """A number, or a range."""
    first, _, last = text.partition("-")
    if not first.isdigit() or (last and not last.isdigit()) or text.endswith("-"):
        raise InvalidRequest("a message is a number, or a range of numbers as 7-9", given=text)
    return int(first), int(last or first)


@on_service(commands)
def rewind(
    service: Service,
    places: PlacesArgument,
    seq: Annotated[int | None, typer.Option("--seq", min=1, help="From this number on.")] = None,
    time_ms: Annotated[
        int | None, typer.Option("--time-ms", min=0, help="From this time on (milliseconds since 1970).")
    ] = None,
) -> None:
    """Deliver retained messages again: all, or from a number or a time on.

    Durables that retain nothing are listed, and the exit code is 1.
    """
    for place in places:
        split_place(place)
    with service.store_client() as client:
        chosen = described(client, places_of(client, places, durables=True))
        # The user may not be allowed to describe a durable; then the service decides.
        without = [place for place, of in chosen.items() if of and not of.get("retention_time")]
        if len(without) == len(chosen):
            raise InvalidRequest(
                "only a durable with a retention_time can be rewound", code=Code.TYPE_MISMATCH, given=", ".join(without)
            )
        for place in [place for place in chosen if place not in without]:
            store, durable = split_place(place)
            client.rewind(store, durable, seq=seq, time_ms=time_ms)
            service.show({"rewound": place}, f"rewound {place}")
        for place in without:
            reason = "it has no retention_time"
            service.show({"not_rewound": place, "reason": reason}, f"not rewound {place}: {reason}")
    if without:
        raise typer.Exit(Exit.NO)


class _Kept:
    """Counts the messages that are confirmed, in the order in which they were sent."""

    def __init__(self) -> None:
        self.messages = 0
        self.first_seq = 0
        self.last_seq = 0
        self.unmatched = 0
        """Messages that no durable wanted."""
        self.discarded = 0
        """Messages that durables gave up because of their limits."""
        self._receipt: Receipt | None = None
        self._unconfirmed: deque[Sent] = deque()

    @property
    def fields(self) -> dict[str, object]:
        """For an error."""
        return {"kept_messages": self.messages, "kept_through_seq": self.last_seq}

    def sent(self, message: Sent) -> None:
        self._unconfirmed.append(message)
        self.count()

    def count(self) -> None:
        waiting = self._unconfirmed
        while waiting and waiting[0].done and waiting[0].error is None:
            confirmed = waiting.popleft()
            self.last_seq = confirmed.seq
            if confirmed.receipt is not None and confirmed.receipt is not self._receipt:
                self._receipt = confirmed.receipt
                self.unmatched += confirmed.receipt.unmatched
                self.discarded += confirmed.receipt.discarded
            self.first_seq = self.first_seq or self.last_seq
            self.messages += 1


def _subscriber_of_messages(client: StoreClient, store: str, durable: str, **arguments: Any) -> Subscriber:
    """Raises: InvalidRequest for a map: its subscribers get no messages and would wait without end."""
    with contextlib.suppress(NotFound, PermissionDenied):  # a durable yet to be made; or who may only consume
        if client.describe_durable(store, durable).get("type") == "map":
            raise InvalidRequest(
                "a map has keys, not messages",
                code=Code.TYPE_MISMATCH,
                hint=f"use holdfast stores watch {store}/{durable}",
                store=store,
                durable=durable,
            )
    return client.subscriber(store, durable, **arguments)


def _until_quiet(
    receive: Callable[[float | None], T | None], is_ready: Callable[[], bool], wait: float | None
) -> Iterator[T]:
    """Messages or changes, until none came for ``wait`` seconds after the stream was ready.

    A service takes ``DELIVERY_SECONDS`` at most for the first delivery to a new subscriber.
    """
    while True:
        was_ready = is_ready()
        received = receive(None if wait is None else max(wait, DELIVERY_SECONDS))
        if received is not None:
            yield received
        elif was_ready or wait is None:
            return


def _matcher(option: str, text: str | None) -> dict[str, object] | None:
    wanted = None if text is None else parse_value(text)
    if wanted is not None and not isinstance(wanted, dict):
        raise InvalidRequest(f'{option} is a JSON object, for example {{"kind": "a"}}')
    return cast("dict[str, object] | None", wanted)


def message_fields(message: Delivery) -> dict[str, object]:
    """A message as the HTTP API writes it."""
    import msgspec

    return {
        "seq": message.seq,
        "fields": message.fields,
        "key": message.key,
        "body": base64_text(message.body),
        "published_ms": message.published_ms,
        "delivery_count": message.delivery_count,
        "redelivered": message.redelivered,
        "replayed": message.replayed,
        **({} if message.origin is None else {"origin": msgspec.to_builtins(message.origin)}),
    }


def message_text(message: Delivery) -> str:
    """A message on one line: number, fields, body, and the delivery count if it is a redelivery."""
    parts = [str(message.seq)]
    if message.key is not None:
        parts.append(f"[{printable(message.key)}]")
    parts += [printable(f"{name}={value}") for name, value in message.fields.items()]
    parts.append(readable(message.body))
    if message.redelivered:
        parts.append(f"(delivery {message.delivery_count})")
    if message.replayed:
        parts.append("(replayed)")
    if (origin := message.origin) is not None:
        came = f"{origin.store}/{origin.durable} {origin.seq}"
        parts.append(printable(f"(from {came}: {origin.cause}, deliveries {origin.delivery_count})"))
    return "  ".join(parts)


def change_fields(change: KeyChange) -> dict[str, object]:
    """A change of a map as the HTTP API writes it."""
    value = None if change.value is None else base64_text(change.value)
    return {"key": change.key, "revision": change.revision, "cause": change.cause, "value": value}


def change_text(change: KeyChange) -> str:
    """A change on one line: revision, key, and the value or the cause of its removal."""
    said = f"({change.cause})" if change.value is None else readable(change.value)
    return f"{change.revision}  [{printable(change.key)}]  {said}"


def _field(text: str) -> tuple[str, FieldValue]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidRequest(f"a field is NAME=VALUE, for example kind=a, and got {text}")
    parsed = parse_value(value)
    return name, parsed if isinstance(parsed, int | str) else value


def _bodies(bodies: Iterable[str] | None, encoding: TextForm) -> Iterator[bytes]:
    if bodies:
        yield from (parse_bytes(body, encoding) for body in bodies)
    else:
        for line in sys.stdin.buffer:
            text = line.rstrip(b"\n")
            yield text if encoding is TextForm.TEXT else parse_bytes(text.decode("ascii", "replace"), encoding)


# ---- maps -----------------------------------------------------------------------------------------------------------

maps = typer.Typer(no_args_is_help=True, help="Keys and locks of a map.", rich_markup_mode=None)
commands.add_typer(maps, name="map")

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="A key of the map.")]
FenceOption = Annotated[int, typer.Option("--fence", min=0, help="Write only while this lock is held; 0 for none.")]
RevisionOption = Annotated[
    int | None, typer.Option("--if-revision", min=0, help="Only if this is its revision; 0 means absent.")
]


def _text_of(value: bytes, encoding: TextForm) -> str:
    """A value for printing: text if it is UTF-8, else Base64."""
    if encoding is TextForm.HEX:
        return value.hex()
    if encoding is TextForm.TEXT:
        with contextlib.suppress(UnicodeDecodeError):
            return printable(value.decode())
    return base64.b64encode(value).decode()


def _no_such_key(place: str, key: str) -> NotFound:
    return NotFound("there is no such key", code=Code.NO_SUCH_KEY, map=place, key=key)


@on_service(maps, "get")
def get_key(service: Service, place: PlaceArgument, key: KeyArgument, encoding: EncodingOption = TextForm.TEXT) -> None:
    """Print the value of a key; exit code 1 if there is none."""
    store, name = split_place(place)
    with service.store_client() as client:
        entry = client.map(store, name).get(key)
    if entry is None:
        raise _no_such_key(place, key)
    value = _text_of(entry.value, encoding)
    service.show({"key": key, "value": value, "revision": entry.revision}, value)


@on_service(maps, "set")
def set_key(
    service: Service,
    place: PlaceArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(help="The value.")],
    if_revision: RevisionOption = None,
    fence: FenceOption = 0,
    encoding: EncodingOption = TextForm.TEXT,
) -> None:
    """Set a key, and print its revision."""
    store, name = split_place(place)
    data = parse_bytes(value, encoding)
    with service.store_client() as client:
        revision = client.map(store, name).set(key, data, if_revision=if_revision, fence=fence)
    service.show({"key": key, "revision": revision}, f"set {key}, revision {revision}")


@on_service(maps, "rm")
def rm_key(
    service: Service, place: PlaceArgument, key: KeyArgument, if_revision: RevisionOption = None, fence: FenceOption = 0
) -> None:
    """Remove a key; exit code 1 if there is none."""
    store, name = split_place(place)
    with service.store_client() as client:
        was_there = client.map(store, name).remove(key, if_revision=if_revision, fence=fence)
    if not was_there:
        raise _no_such_key(place, key)
    service.show({"removed": key}, f"removed {key}")


@on_service(maps, "lock")
def lock_key(
    service: Service,
    place: PlaceArgument,
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="A key; the whole map by default.")] = "",
    owner: Annotated[str, typer.Option("--owner", help="The owner of the lock.", show_default=False)] = "command-line",
    ttl_ms: Annotated[int, typer.Option("--ttl-ms", min=1, help="How long the lock is held.")] = 30_000,
    steal: Annotated[bool, typer.Option("--steal", help="Take the lock from its owner.")] = False,
) -> None:
    """Take the lock of a key, and print its fence: writes with --fence are refused after the lock is lost."""
    store, name = split_place(place)
    with service.store_client() as client:
        held = client.map(store, name).lock(key, owner=owner, ttl_ms=ttl_ms, steal=steal)
    facts = {"key": held.key, "owner": held.owner, "fence": held.fence, "until_ms": held.until_ms}
    service.show(facts, f"locked until {held.until_ms}, fence {held.fence}")


@on_service(maps, "unlock")
def unlock_key(
    service: Service,
    place: PlaceArgument,
    fence: Annotated[int, typer.Argument(help="The fence that lock printed.", min=1)],
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="A key; the whole map by default.")] = "",
    owner: Annotated[str, typer.Option("--owner", help="The owner of the lock.", show_default=False)] = "command-line",
) -> None:
    """Release a lock."""
    from holdfast.client.stores import Lock

    store, name = split_place(place)
    with service.store_client() as client:
        client.map(store, name).unlock(Lock(key, owner, fence, 0))
    service.show({"unlocked": key}, "unlocked")
