"""How patient a client is.

Owns: the bounds of every wait, retry and buffer. Does not own: when they apply (``core``, ``stream``, the shells).
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import Code, InvalidRequest

__all__ = ["ClientOptions"]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Every bound of a client; the defaults suit a service nearby.

    Units: milliseconds, bytes, counts. ``request_timeout_ms`` bounds one request; ``give_up_after_ms`` bounds the
    repeats of an operation that was not accepted; ``resolve_within_ms`` bounds the asking after an unknown outcome;
    ``attempts_max`` bounds the attempts of a transaction and ``commits_per_request_max`` one request of a stream of
    commits. ``stream_silence_ms`` must be above the service's keep-alive interval (30 s unless configured).
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

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value: object = getattr(self, name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise InvalidRequest(
                    "a bound must be above zero", code=Code.BAD_CONFIGURATION, option=name, value=value
                )
        if self.retry_base_ms > self.retry_max_ms:
            raise InvalidRequest("retry_base_ms is above retry_max_ms", code=Code.BAD_CONFIGURATION)
