"""Messages from the command line: ``holdfast stores publish``, ``tail``, ``watch``, ``browse``, ``purge``,
``redeliver``, ``rewind``.

Owns: how messages are written and printed. Does not own: the group (``stores``), sending and receiving
(``holdfast.StoreClient``).

Failure model: as the client's. ``tail`` acknowledges what it has printed; what it did not is delivered again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from holdfast.cli.options import (
    Encoding,
    EncodingOption,
    JsonOption,
    TimeoutOption,
    TokenOption,
    UrlOption,
    parse_bytes,
)
from holdfast.cli.output import Exit, base64_text, flush_output, print_json, print_line, printable, readable
from holdfast.cli.service import STREAM_SECONDS, TIMEOUT_SECONDS, WaitNotice, store_asking, store_following
from holdfast.cli.stores import (
    PlaceArgument,
    PlacesArgument,
    YesOption,
    ask_first,
    commands,
    described,
    parse_value,
    places_of,
    split_place,
)
from holdfast.cli.transactions import LOCAL
from holdfast.errors import (
    Code,
    HoldfastError,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    Unavailable,
)

if TYPE_CHECKING:
    from holdfast.client.stores import Delivery, KeyChange, Receipt, Sent, StoreClient, Subscriber, Watch
    from holdfast.stores.values.messages import FieldValue

__all__ = ["browse", "commands", "explain", "message_text", "publish", "purge", "redeliver", "rewind", "tail", "watch"]

DELIVERY_SECONDS: Final = 0.5


@commands.command()
def publish(
    store: Annotated[str, typer.Argument(help="The store.", show_default=False)],
    bodies: Annotated[
        list[str] | None,
        typer.Argument(metavar="BODY...", help="Messages; lines of standard input when there is none."),
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option("--field", "-f", metavar="NAME=VALUE", help="A field of each; repeatable.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The key of each.", show_default=False)] = None,
    ttl_ms: Annotated[int, typer.Option("--ttl-ms", min=0, help="Expires after so long; 0 never.")] = 0,
    deliver_at_ms: Annotated[
        int, typer.Option("--deliver-at-ms", min=0, help="Not before this time (milliseconds since 1970).")
    ] = 0,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    encoding: EncodingOption = Encoding.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Publish messages and wait until the store has them.

    Ends with the first that the store does not take, and says how many it kept: what is behind them is not kept.

    For example: holdfast stores publish orders hello -f kind=a
    """
    from holdfast.client.protocol.stores.messages import publish_request
    from holdfast.client.stores import PublisherOptions
    from holdfast.stores.values.messages import Message

    fields = dict(_field(text) for text in field or ())
    # What all messages share is refused here, if it cannot be sent, and not by a thread of the publisher.
    publish_request(store, "", [Message(b"", fields, key, 0, ttl_ms, deliver_at_ms)])
    options = PublisherOptions(retry_duration=TIMEOUT_SECONDS if timeout is None else timeout)
    kept = _Kept()
    notice = WaitNotice(url, TIMEOUT_SECONDS if timeout is None else timeout, as_json=as_json)
    try:
        with (
            # While whoever writes to standard input thinks, nobody waits for the service.
            store_asking(url, token, timeout, as_json=as_json)
            if bodies
            else store_following(url, token, timeout, notice) as client,
            # Numbered by this command, it ends with the first failure: --timeout is waited once, not for each request.
            client.publisher(
                store, publisher_id=f"publish-{secrets.token_hex(16)}", next_seq=1, options=options
            ) as publisher,
        ):
            for body in _bodies(bodies, encoding):
                kept.sent(publisher.send(body, fields=fields, key=key, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms))
            publisher.flush()
    except HoldfastError as error:
        kept.settle()
        error.fields = {**error.fields, **kept.fields}
        raise
    except KeyboardInterrupt:
        kept.settle()
        told = json.dumps({"interrupted": kept.fields}) if as_json else f"holdfast: interrupted, kept {kept.messages}"
        sys.stderr.write(told + "\n")
        raise
    kept.settle()
    if not kept.messages:
        raise InvalidRequest(
            "nothing was published: there is no BODY, and standard input had no line",
            hint="holdfast stores publish orders hello, or: printf 'one\\ntwo\\n' | holdfast stores publish orders",
        )
    published = f"published {kept.messages}, numbers {kept.first_seq} to {kept.last_seq}"
    try:
        if as_json:
            numbers = {"first_seq": kept.first_seq, "last_seq": kept.last_seq}
            print_json({"messages": kept.messages, **numbers, "unmatched": kept.unmatched})
        else:
            print_line(published)
            if kept.unmatched:
                print_line(f"no durable wanted {kept.unmatched} of them: they are not kept")
        flush_output()
    except Unavailable as error:
        # No code that says "it may work later": it has worked, and once more would be twice.
        raise OutcomeUnknown(f"{published}, which could not be written: {error.statement()}") from error


@commands.command()
def tail(
    place: PlaceArgument,
    subscriber: Annotated[
        str | None, typer.Option("--subscriber", help="The subscriber's name.", show_default=False)
    ] = None,
    template: Annotated[
        str | None, typer.Option("--template", help="Make the durable of this template.", show_default=False)
    ] = None,
    matcher: Annotated[
        str | None, typer.Option("--matcher", metavar="JSON", help="What such a durable is for.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The key, of a last-value durable.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="End after so many messages; 0 is never.")] = 0,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", min=0, max=86_400, metavar="SECONDS", help="End when so long nothing came, once connected."
        ),
    ] = None,
    acknowledge: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Acknowledge what was printed, or let it be delivered again.")
    ] = True,
    reject: Annotated[bool, typer.Option("--reject", help="Send what was printed to the dead letters.")] = False,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Subscribe: print each message as it is delivered, and acknowledge it. A map is watched instead."""
    from holdfast.client.stores import SubscriberOptions

    store, durable = split_place(place)
    wanted = None if matcher is None else parse_value(matcher)
    if wanted is not None and not isinstance(wanted, dict):
        raise InvalidRequest('--matcher is a JSON object, for example {"kind": "a"}')
    notice = WaitNotice(url, STREAM_SECONDS if timeout is None else timeout, as_json=as_json)
    options = SubscriberOptions(explicit_ack=True, retry_duration=STREAM_SECONDS if timeout is None else timeout)
    with (
        store_following(url, token, timeout, notice) as client,
        _subscriber_of_messages(
            client,
            store,
            durable,
            subscriber=subscriber,
            template=template,
            matcher=cast("dict[str, object] | None", wanted),
            key=key,
            options=options,
        ) as messages,
    ):
        printed = 0
        while (message := _receive(messages, wait)) is not None:
            print_json(message_fields(message)) if as_json else print_line(message_text(message))
            flush_output()
            if reject:
                messages.reject(message)
            elif acknowledge:
                messages.acknowledge(message)
            printed += 1
            if limit and printed == limit:
                return


@commands.command()
def watch(
    place: Annotated[str, typer.Argument(metavar="STORE/MAP", help="A map of a store.", show_default=False)],
    key: Annotated[str | None, typer.Option("--key", help="This key alone.", show_default=False)] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Keys that begin so.", show_default=False)] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="End after so many changes; 0 is never.")] = 0,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", min=0, max=86_400, metavar="SECONDS", help="End when so long nothing came, once connected."
        ),
    ] = None,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what is in a map, and then each change of it."""
    from holdfast.client.stores import SubscriberOptions

    store, name = split_place(place)
    notice = WaitNotice(url, STREAM_SECONDS if timeout is None else timeout, as_json=as_json)
    options = SubscriberOptions(retry_duration=STREAM_SECONDS if timeout is None else timeout)
    with (
        store_following(url, token, timeout, notice) as client,
        client.map(store, name).watch(key=key, prefix=prefix, options=options) as changes,
    ):
        printed = 0
        while (change := _next_change(changes, wait)) is not None:
            print_json(change_fields(change)) if as_json else print_line(change_text(change))
            flush_output()
            printed += 1
            if limit and printed == limit:
                return


@commands.command()
def browse(
    place: PlaceArgument,
    after: Annotated[int, typer.Option("--after", min=0, help="Begin behind this number.")] = 0,
    match: Annotated[
        str | None, typer.Option("--match", metavar="JSON", help='Only these, for example \'{"kind": "a"}\'.')
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most so many; 0 is all.")] = 100,
    parked: Annotated[bool, typer.Option("--parked", help="Only messages that were delivered too often.")] = False,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a durable keeps, without consuming it."""
    store, durable = split_place(place)
    wanted = None if match is None else parse_value(match)
    if wanted is not None and not isinstance(wanted, dict):
        raise InvalidRequest('--match is a JSON object, for example {"kind": "a"}')
    with store_asking(url, token, timeout, as_json=as_json) as client:
        matcher = cast("dict[str, object] | None", wanted)
        found = client.browser(store, durable, match=matcher, after=after, parked=parked)
        for message in _first(found, limit):
            print_json(message_fields(message)) if as_json else print_line(message_text(message))


@commands.command()
def purge(
    places: PlacesArgument,
    yes: YesOption = False,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget every message that durables keep."""
    for place in places:
        split_place(place)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        chosen = places_of(client, places, durables=True)
        described(client, chosen)
        ask_first("purge", chosen, yes=yes)
        for place in chosen:
            gone = client.purge(*split_place(place))
            if as_json:
                print_json({"durable": place, "messages": gone.messages, "bytes": gone.bytes})
            else:
                print_line(f"purged {gone.messages} messages, {gone.bytes} bytes of {place}")


@commands.command()
def explain(
    store: Annotated[str, typer.Argument(help="The store.", show_default=False)],
    seq: Annotated[int, typer.Argument(help="The message's number.", min=1, show_default=False)],
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what became of a message in every durable of its store."""
    with store_asking(url, token, timeout, as_json=as_json) as client:
        found = client.explain(store, seq)
    if as_json:
        print_json(found)
        return
    for durable in cast("list[dict[str, object]]", found["durables"]):
        facts = [
            f"{name}={json.dumps(value)}" for name, value in durable.items() if name not in ("name", "type", "fate")
        ]
        print_line(" ".join([f"{durable['name']}: {durable['fate']}", *facts]))


@commands.command()
def redeliver(
    place: PlaceArgument,
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="SEQ...", help="Only these numbers, or ranges as 7-9.")
    ] = None,
    match: Annotated[
        str | None, typer.Option("--match", metavar="JSON", help='Only these, for example \'{"kind": "a"}\'.')
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most so many; 0 is all.")] = 0,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver parked messages again; of a dead-letter store, send letters back to where they came from."""
    store, durable = split_place(place)
    wanted = None if match is None else parse_value(match)
    if wanted is not None and not isinstance(wanted, dict):
        raise InvalidRequest('--match is a JSON object, for example {"kind": "a"}')
    ranges = [_range(text) for text in messages or ()]
    with store_asking(url, token, timeout, as_json=as_json) as client:
        found = client.redeliver(
            store, durable, ranges, match=cast("dict[str, object] | None", wanted), limit=limit or None
        )
    reason = "" if found.messages or found.left else "no message that was asked for is parked or a dead letter"
    if as_json:
        print_json({"redelivered": found.messages, "left": found.left, **({"reason": reason} if reason else {})})
        return
    print_line(f"redelivered {found.messages} messages")
    if reason:
        print_line(f"{reason}: holdfast stores browse {place} --parked lists what is parked")
    for reason, count in sorted(found.left.items()):
        print_line(f"left {count}: {reason}")


def _range(text: str) -> tuple[int, int]:
    """A number, or a range."""
    first, _, last = text.partition("-")
    if not first.isdigit() or (last and not last.isdigit()) or text.endswith("-"):
        raise InvalidRequest("a message is a number, or a range of numbers as 7-9", given=text)
    return int(first), int(last or first)


@commands.command()
def rewind(
    places: PlacesArgument,
    seq: Annotated[int | None, typer.Option("--seq", min=1, help="From this number on.", show_default=False)] = None,
    time_ms: Annotated[
        int | None,
        typer.Option("--time-ms", min=0, help="From this time on (milliseconds since 1970).", show_default=False),
    ] = None,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver again what is retained: everything, or from a number or a time on.

    Durables that retain nothing are named; then the exit code is 1.
    """
    for place in places:
        split_place(place)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        chosen = described(client, places_of(client, places, durables=True))
        # Of a durable that the user may not look at the service decides.
        without = [place for place, of in chosen.items() if of and not of.get("retention_time")]
        if len(without) == len(chosen):
            raise InvalidRequest(
                "only a durable with a retention_time can be rewound", code=Code.TYPE_MISMATCH, given=", ".join(without)
            )
        for place in [place for place in chosen if place not in without]:
            store, durable = split_place(place)
            client.rewind(store, durable, seq=seq, time_ms=time_ms)
            print_json({"rewound": place}) if as_json else print_line(f"rewound {place}")
        for place in without:
            reason = "it has no retention_time"
            if as_json:
                print_json({"not_rewound": place, "reason": reason})
            else:
                print_line(f"not rewound {place}: {reason}")
    if without:
        raise typer.Exit(Exit.NO)


class _Kept:
    """How much of what was sent is confirmed, in the order in which it was sent; what is not yet is in the window."""

    def __init__(self) -> None:
        self.messages = 0
        self.first_seq = 0
        self.last_seq = 0
        self.unmatched = 0
        """Messages that no durable wanted."""
        self._receipt: Receipt | None = None
        self._unconfirmed: deque[Sent] = deque()

    @property
    def fields(self) -> dict[str, object]:
        """For an error."""
        return {"kept_messages": self.messages, "kept_through_seq": self.last_seq}

    def sent(self, message: Sent) -> None:
        self._unconfirmed.append(message)
        self.settle()

    def settle(self) -> None:
        waiting = self._unconfirmed
        while waiting and waiting[0].done and waiting[0].error is None:
            settled = waiting.popleft()
            self.last_seq = settled.seq
            if settled.receipt is not None and settled.receipt is not self._receipt:
                self._receipt = settled.receipt
                self.unmatched += settled.receipt.unmatched
            self.first_seq = self.first_seq or self.last_seq
            self.messages += 1


def _subscriber_of_messages(client: StoreClient, store: str, durable: str, **arguments: Any) -> Subscriber:
    """Raises: InvalidRequest for a map, whose subscribers are told of no message and would wait for ever."""
    with contextlib.suppress(NotFound, PermissionDenied):  # a durable yet to be made; or who may only consume
        if client.describe_durable(store, durable).get("type") == "map":
            raise InvalidRequest(
                "a map has keys, no messages",
                code=Code.TYPE_MISMATCH,
                hint=f"holdfast stores watch {store}/{durable}",
                store=store,
                durable=durable,
            )
    return client.subscriber(store, durable, **arguments)


def _receive(messages: Subscriber, wait: float | None) -> Delivery | None:
    """The next message; None when none came for ``wait`` seconds. The time before the first connection is not counted.

    A service answers a new subscriber first and delivers to it next: that takes ``DELIVERY_SECONDS`` at most.
    """
    if wait is None:
        return messages.receive()
    while True:
        was_attached = messages.is_attached
        message = messages.receive(max(wait, DELIVERY_SECONDS))
        if message is not None or was_attached:
            return message


def _next_change(changes: Watch, wait: float | None) -> KeyChange | None:
    """As ``_receive``: all that is in the map comes before the first pause that counts."""
    if wait is None:
        return changes.receive()
    while True:
        was_current = changes.is_current
        change = changes.receive(max(wait, DELIVERY_SECONDS))
        if change is not None or was_current:
            return change


def message_fields(message: Delivery) -> dict[str, object]:
    """A message as the HTTP API writes it."""
    return {
        "seq": message.seq,
        "fields": message.fields,
        "key": message.key,
        "body": base64_text(message.body),
        "published_ms": message.published_ms,
        "delivery_count": message.delivery_count,
        "redelivered": message.redelivered,
        "replayed": message.replayed,
    }


def message_text(message: Delivery) -> str:
    """A message on one line: number, fields, body, and how often it was delivered where that is not once."""
    parts = [str(message.seq)]
    if message.key is not None:
        parts.append(f"[{printable(message.key)}]")
    parts += [printable(f"{name}={value}") for name, value in message.fields.items()]
    parts.append(readable(message.body))
    if message.redelivered:
        parts.append(f"(delivery {message.delivery_count})")
    if message.replayed:
        parts.append("(replayed)")
    return "  ".join(parts)


def change_fields(change: KeyChange) -> dict[str, object]:
    """A change of a map as the HTTP API writes it."""
    value = None if change.value is None else base64_text(change.value)
    return {"key": change.key, "revision": change.revision, "cause": change.cause, "value": value}


def change_text(change: KeyChange) -> str:
    """A change on one line: revision, key, and the value or how it went."""
    said = f"({change.cause})" if change.value is None else readable(change.value)
    return f"{change.revision}  [{printable(change.key)}]  {said}"


def _field(text: str) -> tuple[str, FieldValue]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidRequest(f"a field is NAME=VALUE, for example kind=a, and got {text}")
    parsed = parse_value(value)
    return name, parsed if isinstance(parsed, int | str) else value


def _bodies(bodies: Iterable[str] | None, encoding: Encoding) -> Iterator[bytes]:
    if bodies:
        yield from (parse_bytes(body, encoding) for body in bodies)
    else:
        for line in sys.stdin.buffer:
            text = line.rstrip(b"\n")
            yield text if encoding is Encoding.TEXT else parse_bytes(text.decode("ascii", "replace"), encoding)


def _first(messages: Iterable[Delivery], limit: int) -> Iterator[Delivery]:
    for count, message in enumerate(messages, 1):
        yield message
        if limit and count == limit:
            return


# ---- maps -----------------------------------------------------------------------------------------------------------

maps = typer.Typer(no_args_is_help=True, help="Keys and locks of a map.", rich_markup_mode=None)
commands.add_typer(maps, name="map")

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="A key of the map.", show_default=False)]
FenceOption = Annotated[int, typer.Option("--fence", min=0, help="Write only while this lock is held; 0 for none.")]
RevisionOption = Annotated[
    int | None,
    typer.Option("--if-revision", min=0, help="Only if this is its revision; 0 means absent.", show_default=False),
]


def _text_of(value: bytes, encoding: Encoding) -> str:
    """A value for printing: text if it is UTF-8, else Base64."""
    if encoding is Encoding.HEX:
        return value.hex()
    if encoding is Encoding.TEXT:
        with contextlib.suppress(UnicodeDecodeError):
            return printable(value.decode())
    return base64.b64encode(value).decode()


def _no_such_key(place: str, key: str) -> NotFound:
    return NotFound("there is no such key", code=Code.NO_SUCH_KEY, map=place, key=key)


@maps.command("get")
def get_key(
    place: PlaceArgument,
    key: KeyArgument,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    encoding: EncodingOption = Encoding.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Print the value of a key; exit code 1 if there is none."""
    store, name = split_place(place)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        entry = client.map(store, name).get(key)
    if entry is None:
        raise _no_such_key(place, key)
    value = _text_of(entry.value, encoding)
    print_json({"key": key, "value": value, "revision": entry.revision}) if as_json else print_line(value)


@maps.command("set")
def set_key(
    place: PlaceArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(help="The value.", show_default=False)],
    if_revision: RevisionOption = None,
    fence: FenceOption = 0,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    encoding: EncodingOption = Encoding.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Set a key, and print its revision."""
    store, name = split_place(place)
    data = parse_bytes(value, encoding)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        revision = client.map(store, name).set(key, data, if_revision=if_revision, fence=fence)
    print_json({"key": key, "revision": revision}) if as_json else print_line(f"set {key}, revision {revision}")


@maps.command("rm")
def rm_key(
    place: PlaceArgument,
    key: KeyArgument,
    if_revision: RevisionOption = None,
    fence: FenceOption = 0,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a key; exit code 1 if there is none."""
    store, name = split_place(place)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        was_there = client.map(store, name).remove(key, if_revision=if_revision, fence=fence)
    if not was_there:
        raise _no_such_key(place, key)
    print_json({"removed": key}) if as_json else print_line(f"removed {key}")


@maps.command("lock")
def lock_key(
    place: PlaceArgument,
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="A key; the whole map by default.")] = "",
    owner: Annotated[str, typer.Option("--owner", help="The owner of the lock.", show_default=False)] = "command-line",
    ttl_ms: Annotated[int, typer.Option("--ttl-ms", min=1, help="How long the lock is held.")] = 30_000,
    steal: Annotated[bool, typer.Option("--steal", help="Take the lock from its owner.")] = False,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take the lock of a key, and print its fence: writes with --fence are refused after the lock is lost."""
    store, name = split_place(place)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        held = client.map(store, name).lock(key, owner=owner, ttl_ms=ttl_ms, steal=steal)
    facts = {"key": held.key, "owner": held.owner, "fence": held.fence, "until_ms": held.until_ms}
    print_json(facts) if as_json else print_line(f"locked until {held.until_ms}, fence {held.fence}")


@maps.command("unlock")
def unlock_key(
    place: PlaceArgument,
    fence: Annotated[int, typer.Argument(help="The fence that lock printed.", min=1, show_default=False)],
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="A key; the whole map by default.")] = "",
    owner: Annotated[str, typer.Option("--owner", help="The owner of the lock.", show_default=False)] = "command-line",
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Release a lock."""
    from holdfast.client.stores import Lock

    store, name = split_place(place)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        client.map(store, name).unlock(Lock(key, owner, fence, 0))
    print_json({"unlocked": key}) if as_json else print_line("unlocked")
