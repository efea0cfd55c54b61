"""The stores' reference pages agree with the code: parameters, defaults, codes, options and calls."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import holdfast.client.aio.stores as asynchronous
import holdfast.client.sync.stores as blocking
from holdfast.client.protocol.options import PublisherOptions, SubscriberOptions
from holdfast.errors import Code
from holdfast.server.http.responses import STATUS_OF
from holdfast.stores.definitions.cluster import PARAMETER_TYPES, ClusterDefinition, StoreDefinition
from holdfast.stores.definitions.permissions import Right
from holdfast.stores.matching import Matcher

DOCS = Path(__file__).resolve().parents[4] / "docs" / "reference"
PAGE = (DOCS / "stores.md").read_text(encoding="utf-8")
CLIENT_PAGE = (DOCS / "stores-client.md").read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def names(text: str) -> set[str]:
    """What the first cells of a section's tables name."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_every_parameter_of_the_cluster_is_on_the_page() -> None:
    assert names(section(PAGE, "The cluster")) == set(ClusterDefinition().document()["cluster"])  # type: ignore[call-overload]


def test_every_parameter_of_a_store_is_on_the_page() -> None:
    assert names(section(PAGE, "A store")) == set(StoreDefinition("s").document()) - {"durables", "templates"}


def test_every_parameter_of_a_durable_is_on_the_page_with_its_types() -> None:
    text = section(PAGE, "A durable, or a template of durables").partition("\n### When a time ends\n")[0]
    types = {"standard", "shared", "last_value", "map"}
    assert names(text) == set(PARAMETER_TYPES) | types
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        for name in re.findall(r"`(\w+)`", cells[1]) if len(cells) == 6 else ():
            if name in PARAMETER_TYPES:
                said = cells[3]
                left_out = set(said.removeprefix("all but ").split(", ")) if said.startswith("all but ") else set()
                expected = types - left_out if said.startswith("all") else set(said.split(", "))
                assert {str(kind) for kind in PARAMETER_TYPES[name]} == expected, name


def test_every_code_on_the_page_has_the_status_that_it_says() -> None:
    rows = [line.split("|") for line in section(PAGE, "Errors").splitlines() if line.startswith("| `")]
    assert rows
    for row in rows:
        for name in re.findall(r"`(\w+)`", row[1]):
            assert STATUS_OF[Code(name)] == int(row[2]), name


def test_every_matcher_on_the_page_is_one() -> None:
    rows = [
        line.split("|")[1] for line in section(PAGE, "Messages and matchers").splitlines() if line.startswith("| `")
    ]
    assert len(rows) >= 7
    for row in rows:
        Matcher.parse(row.strip().strip("`").encode())


def test_every_right_is_named() -> None:
    assert {str(right) for right in Right} <= set(re.findall(r"`(\w+)`", PAGE))


@pytest.mark.parametrize(("heading", "options"), [("Publishing", PublisherOptions), ("Subscribing", SubscriberOptions)])
def test_every_option_is_on_the_clients_page(heading: str, options: type) -> None:
    assert {field.name for field in dataclasses.fields(options)} <= names(section(CLIENT_PAGE, heading))


def test_every_call_of_the_client_is_on_its_page_and_both_twins_have_it() -> None:
    for name in ("StoreClient", "Publisher", "Subscriber", "Map", "Browser"):
        twins = [
            {call for call in dir(getattr(module, name)) if not call.startswith("_")}
            for module in (blocking, asynchronous)
        ]
        assert {call.removeprefix("a") if call == "aclose" else call for call in twins[1]} == twins[0]
    calls = {call for call in dir(blocking.StoreClient) if not call.startswith("_")} - {"close"}
    assert calls <= set(re.findall(r"(\w+)", CLIENT_PAGE))
