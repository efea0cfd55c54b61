"""The bounds of clients, publishers and subscribers: every wait, retry and buffer.

An invalid value raises ``InvalidRequest`` before anything is sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from holdfast.client.protocol.endpoint import TrustedHosts
from holdfast.errors import Code, InvalidRequest

_NOT_BOUNDS: Final = ("follow_leader", "gather", "trusted_hosts")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Every bound of a client; the defaults suit a service nearby.

    Units: milliseconds, bytes, counts. ``request_timeout_ms`` bounds one request; ``give_up_after_ms`` bounds the
    repeats of an operation that was not accepted; ``resolve_within_ms`` bounds the asking after an unknown outcome;
    ``attempts_max`` bounds the attempts of a transaction, ``commits_per_request_max`` and ``commits_bytes_max`` one
    request of several commits. ``stream_silence_ms`` must be above the service's keep-alive interval (30 s unless
    configured). ``gather``: commits, and gets, that wait at the same time travel together; ``gather_ms``: how long one
    waits at most for a request that is under way.
    ``trusted_hosts``: addresses besides the given ones that may get the token, as patterns (``NAME:PORT``,
    ``*.SUFFIX:PORT``, ``NETWORK/BITS:PORT``).
    """

    request_timeout_ms: float = 15_000
    give_up_after_ms: float = 60_000
    resolve_within_ms: float = 60_000
    retry_base_ms: float = 20
    retry_max_ms: float = 2_000
    attempts_max: int = 64
    connections_max: int = 256
    idle_connection_ms: float = 20_000
    response_bytes_max: int = 64 << 20
    commits_per_request_max: int = 1_000
    commits_bytes_max: int = 1 << 20
    stream_silence_ms: float = 75_000
    stream_give_up_after_ms: float = 300_000
    event_bytes_max: int = 64 << 20
    follow_leader: bool = True
    trusted_hosts: tuple[str, ...] = ()
    gather: bool = True
    gather_ms: float = 1

    def __post_init__(self) -> None:
        _require_positive(self, *(name for name in self.__dataclass_fields__ if name not in _NOT_BOUNDS))
        TrustedHosts(self.trusted_hosts)
        if self.retry_base_ms > self.retry_max_ms:
            raise InvalidRequest("retry_base_ms is above retry_max_ms", code=Code.BAD_CONFIGURATION)


PublisherMode = Literal["store_confirm_send", "store_send_noconfirm"]

FOR_EVER: Final = -1.0
"""A ``retry_duration`` without an end."""


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """Every bound of a publisher.

    ``mode``: ``store_confirm_send`` waits for the store's confirmation of every message; ``store_send_noconfirm`` sends
    once, notices no failure and loses messages that do not arrive. ``window_messages`` and ``window_bytes``: how much
    may be unconfirmed before sending waits. ``batch_messages`` and ``batch_bytes``: bounds of one request.
    ``linger_ms``: how long the first message of a request waits for more while no request is in flight; messages that
    come meanwhile form the next request, so 0 already makes batches under load.
    ``retry_duration``: for how many seconds a batch is retried after no quorum, a lost connection, a full store or a
    full disk; 0 for no retry, -1 without end. ``close_linger``: for how many seconds closing waits for confirmations.
    ``failures_max``: how many failures are kept for ``take_failures``; further ones are only counted.
    """

    mode: PublisherMode = "store_confirm_send"
    window_messages: int = 1_024
    window_bytes: int = 16 << 20
    batch_messages: int = 4_096
    batch_bytes: int = 1 << 20
    linger_ms: float = 0
    retry_duration: float = FOR_EVER
    close_linger: float = 5.0
    failures_max: int = 10_000

    def __post_init__(self) -> None:
        _require_positive(self, "window_messages", "window_bytes", "batch_messages", "batch_bytes", "failures_max")
        _require_not_negative(self, "linger_ms", "close_linger")
        _require_retry_duration(self.retry_duration)
        if self.mode not in ("store_confirm_send", "store_send_noconfirm"):
            raise InvalidRequest("there is no such mode", code=Code.BAD_CONFIGURATION, mode=self.mode)

    @property
    def confirms(self) -> bool:
        """Whether the store confirms messages."""
        return self.mode == "store_confirm_send"


BUSY_WAIT_MS_MAX: Final = 60_000


@dataclass(frozen=True, slots=True)
class SubscriberOptions:
    """Every bound of a subscriber.

    ``explicit_ack``: False acknowledges a message when the next one is asked for, or the callback returned; the message
    in work when the subscriber is left comes again. ``prefetch``: the most unacknowledged messages that it holds, None
    for the durable's number. ``ack_batch_count`` and ``ack_batch_time``: acknowledgements are sent together, after this
    many or this many seconds; None for the durable's values. ``retry_duration``: how many seconds it asks for a lost
    service, or for a standard durable that another subscriber has; 0 for no retry, -1 without end. ``heartbeat_ms``:
    how often an idle connection is probed. ``timeout_ms``: a service that is silent for this long counts as lost.
    ``advisories_max``: older ones are dropped.
    """

    explicit_ack: bool = False
    prefetch: int | None = None
    ack_batch_count: int | None = None
    ack_batch_time: float | None = None
    retry_duration: float = FOR_EVER
    heartbeat_ms: float = 2_000
    timeout_ms: float = 5_000
    close_linger: float = 5.0
    advisories_max: int = 1_000

    def __post_init__(self) -> None:
        _require_positive(self, "heartbeat_ms", "timeout_ms", "advisories_max", "prefetch", "ack_batch_count")
        _require_not_negative(self, "close_linger", "ack_batch_time")
        _require_retry_duration(self.retry_duration)
        if self.heartbeat_ms >= self.timeout_ms:
            raise InvalidRequest(
                "a heartbeat must be shorter than the time-out, or every idle connection counts as lost",
                code=Code.BAD_CONFIGURATION,
                heartbeat_ms=self.heartbeat_ms,
                timeout_ms=self.timeout_ms,
            )


def busy_wait_ms(options: SubscriberOptions) -> int:
    """How long one request waits for a standard durable that another subscriber has: no answer comes before.

    Equal waits fill ``retry_duration``, so that the last one ends with it.
    """
    most_ms = min(options.timeout_ms / 2, BUSY_WAIT_MS_MAX)
    patience_ms = within_ms(options.retry_duration)
    if math.isinf(patience_ms):
        return int(most_ms)
    waits = math.ceil(patience_ms / most_ms)
    return min(math.ceil(patience_ms / waits), int(most_ms)) if waits else 0


def _require_positive(options: ClientOptions | PublisherOptions | SubscriberOptions, *names: str) -> None:
    for name in names:
        value: float | None = getattr(options, name)
        if value is not None and not value > 0:
            raise InvalidRequest("a bound must be above zero", code=Code.BAD_CONFIGURATION, option=name, value=value)


def _require_not_negative(options: PublisherOptions | SubscriberOptions, *names: str) -> None:
    for name in names:
        value: float | None = getattr(options, name)
        if value is not None and (not value >= 0 or math.isinf(value)):
            raise InvalidRequest("a time must be zero or more", code=Code.BAD_CONFIGURATION, option=name, value=value)


def _require_retry_duration(seconds: float) -> None:
    if math.isnan(seconds) or (seconds < 0 and seconds != FOR_EVER):
        raise InvalidRequest(
            "retry_duration must be 0 for none, -1 for no end, or a number of seconds",
            code=Code.BAD_CONFIGURATION,
            retry_duration=seconds,
        )


def within_ms(retry_duration: float) -> float:
    """A ``retry_duration`` in milliseconds. Raises: InvalidRequest.

    >>> within_ms(1.5), within_ms(FOR_EVER)
    (1500.0, inf)
    """
    _require_retry_duration(retry_duration)
    return math.inf if retry_duration == FOR_EVER else retry_duration * 1000
