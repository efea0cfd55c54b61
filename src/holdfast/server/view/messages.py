"""The messages between a server and its view process: JSON objects, one per line."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from holdfast.errors import Code, CorruptData


class ViewStart(Struct, frozen=True, kw_only=True):
    """The start of a view process. ``log_id`` and ``directory`` are set when a leadership begins."""

    log_url: str
    segments_url: str = ""
    log_id: str = ""
    directory: str = ""
    request_timeout_ms: int = 10_000
    log_format: Literal["logfmt", "json"] = "logfmt"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Announcement(Struct, frozen=True):
    """From the server: everything up to ``slot``, under ``claim``, is durable. ``flush``: a reader waits."""

    slot: int
    claim: int
    flush: bool


class ViewDamage(Struct, frozen=True):
    """Why nothing after the view's version can be shown: the log itself breaks a rule. ``fields`` name the slot."""

    code: Code
    rule: str
    fields: dict[str, str]
    hint: str = ""

    @classmethod
    def of(cls, error: CorruptData) -> ViewDamage:
        """The same as a message."""
        fields = {name: str(value) for name, value in error.fields.items() if value is not None}
        return cls(error.code, error.message, fields, error.hint)

    def error(self) -> CorruptData:
        """The same as an error."""
        return CorruptData(self.rule, code=self.code, hint=self.hint, facts=self.fields)


class ViewReport(Struct, frozen=True, omit_defaults=True):
    """From the process: the file at ``path`` is the state at ``version``. ``done``: with the last announcement.

    With ``damage`` it is the last report: the file stays where it is. ``retries`` and ``interruptions`` count its
    requests to the store since the process began; see ``objects.retrying``.
    """

    path: str
    version: int
    done: bool
    damage: ViewDamage | None = None
    retries: int = 0
    interruptions: int = 0
