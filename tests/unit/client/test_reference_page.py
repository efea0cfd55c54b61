"""The client's reference page agrees with the code: calls, options and their defaults."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from holdfast.client.aio import client as asynchronous
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.sync import client as blocking

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "client.md").read_text(encoding="utf-8")
INNER = {"run", "sleep", "session", "pool"}
"""For the package's own other clients."""


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")} - INNER


@pytest.mark.parametrize(("heading", "kind"), [("Calls", "Client"), ("Subscribing", "Subscription")])
def test_every_call_is_on_the_page(heading: str, kind: str) -> None:
    first_cells = " ".join(line.split("|")[1] for line in section(heading).splitlines() if line.startswith("|"))
    on_the_page = set(re.findall(r"`(\w+)", first_cells))
    assert public(getattr(blocking, kind)) <= on_the_page
    assert public(getattr(asynchronous, kind)) - {"aclose"} <= on_the_page


def test_every_option_is_on_the_page_with_its_default() -> None:
    said: dict[str, str] = {}
    for line in section("Options").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and cells[1].startswith("`"):
            options = re.findall(r"`(\w+)`", cells[1])
            defaults = cells[2].split("; ")
            said |= dict(
                zip(options, defaults if len(defaults) == len(options) else defaults * len(options), strict=True)
            )
    units = {"MiB": 1 << 20}
    for field in dataclasses.fields(ClientOptions):
        if field.name == "trusted_hosts":
            assert (said.pop(field.name), field.default) == ("none", ())
            continue
        number, _, unit = said.pop(field.name).partition(" ")
        value = number == "true" if number in {"true", "false"} else int(number.replace(",", "")) * units.get(unit, 1)
        assert value == field.default, field.name
    assert not said
