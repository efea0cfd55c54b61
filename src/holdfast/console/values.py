"""Keys and values of the log on a page: written in a form that people read, and read back from an address."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping

from holdfast.console import units
from holdfast.console.call import Call, link
from holdfast.console.html import Content, Html, element
from holdfast.console.parts import anchor, copied, name_shown, notice
from holdfast.errors import InvalidRequest


def bytes_of(text: str) -> bytes:
    """A key that a person wrote: text, or hex after ``0x``. Raises: InvalidRequest.

    >>> bytes_of("seat/12A"), bytes_of("0x00ff")
    (b'seat/12A', b'\\x00\\xff')
    """
    if not text.startswith("0x"):
        return text.encode()
    try:
        return bytes.fromhex(text[2:])
    except ValueError:
        raise InvalidRequest("after 0x only hexadecimal digits are allowed") from None


def packed(data: bytes) -> str:
    """Bytes in an address: base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unpacked(text: str) -> bytes:
    """The bytes of ``packed``. Raises: InvalidRequest."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("the address names no key: it is not base64url") from None


def key_link(key: bytes) -> Html:
    """A key that leads to its page."""
    return anchor(name_shown(units.key_text(key)), link("/key", key=packed(key)))


def log_at(version: float) -> Html:
    """A version that leads to the log from there back; it need not be that of a transaction."""
    return anchor(units.version(version), link("/log", at=int(version)))


def value_given(form: Mapping[str, str]) -> bytes:
    """The value that a person wrote into a form, as text or in hex. Raises: InvalidRequest."""
    text = form.get("value", "").replace("\r\n", "\n")
    if form.get("form") != "hex":
        return text.encode()
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidRequest("the value is not hexadecimal") from None


def compared(old: bytes | None, new: bytes, counter: str) -> Content:
    """The old value, if there is one, and the new one. ``counter``: what changes where they are equal."""
    return [
        notice("warn", f"The value stays as it is; only its {counter} changes.") if old == new else None,
        element("h3", "Old value"),
        element("p", "The key does not exist.", class_="empty") if old is None else value_of(old),
        element("h3", "New value"),
        value_of(new),
    ]


def mark_of(*parts: bytes) -> str:
    """A mark of what a form shows: other parts have another one."""
    return hashlib.sha256(b"".join(b"%d:%b" % (len(each), each) for each in parts)).hexdigest()[:32]


def form_named(name: str) -> units.Form:
    """A form by its name. Raises: InvalidRequest."""
    for form in units.FORMS:
        if form == (name or "auto"):
            return form
    raise InvalidRequest(f"a form is one of {', '.join(units.FORMS)}")


def form_choice(call: Call, **hidden: str | int) -> Html:
    """A field to choose in which form a value is shown. ``hidden``: the rest of the page's address."""
    chosen = form_named(call.text("form"))
    forms = [element("option", each, value=each, selected=each == chosen) for each in units.FORMS]
    return element(
        "form",
        [element("input", type="hidden", name=name, value=value) for name, value in hidden.items()],
        element("label", "Shown as", element("select", forms, name="form")),
        element("button", "Show", type="submit"),
        method="get",
        action=call.path,
        data_auto=True,
        class_="query",
    )


def value_of(value: bytes, form: units.Form = "auto") -> Html:
    """A value in a form, with its size; in hex, and why, where it does not have the form."""
    chosen = units.form_of(value) if form == "auto" else form
    problem = ""
    try:
        shown = units.bytes_text(value, chosen)
    except ValueError:
        shown, problem = units.bytes_text(value, "hex"), f", not {chosen}: shown as hex"
    cut = f", the first {units.size(units.SHOWN_BYTES_MAX)}" if len(value) > units.SHOWN_BYTES_MAX else ""
    note = element(
        "small",
        f"{chosen if not problem else 'bytes'}, {units.size(len(value))}{problem}{cut} ",
        copied(shown, "Copy the shown part" if cut else "Copy"),
    )
    return element("div", note, element("pre", shown, tabindex="0"))
