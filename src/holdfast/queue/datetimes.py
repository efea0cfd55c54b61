"""What programs hand in as ``datetime`` and ``timedelta``, in nanoseconds.

Owns: the checks and the conversion, exact to the microsecond. Does not own: any clock.

Failure model: no state; ``InvalidRequest`` for what is neither. The module ``datetime`` is imported by the first call,
so that a queue that needs none of this opens without it.
"""

from __future__ import annotations

from holdfast.errors import InvalidRequest

__all__ = ["lifetime_ns", "moment_ns"]


def lifetime_ns(lifetime: object) -> int:
    """Nanoseconds of a ``timedelta`` above zero."""
    from datetime import timedelta

    if not isinstance(lifetime, timedelta) or lifetime <= timedelta(0):
        raise InvalidRequest("lifetime is a timedelta above zero", lifetime=repr(lifetime), hint="timedelta(days=7)")
    return lifetime // timedelta(microseconds=1) * 1000


def moment_ns(since: object) -> int:
    """Nanoseconds since 1970 of an aware moment, exactly."""
    import datetime as dt  # not its names: they take longer, and a seek is short

    if not isinstance(since, dt.datetime):
        raise InvalidRequest("unknown starting point", since=repr(since), hint="earliest, latest, a datetime, or seq=")
    if since.utcoffset() is None:
        raise InvalidRequest("a time needs a time zone", since=since.isoformat(), hint="datetime.now(UTC)")
    passed = since - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000_000 + passed.microseconds * 1000
