"""Each parameter of message stores over HTTP: what is set is in force, and what is sent shows it.

A parameter that is documented, or that a definition may have, and has no row in the table fails here.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.integration.http_harness import run
from tests.integration.stores_harness import stores_serving
from tests.stores.parameter_documents import DOCUMENTS, NOT_HERE, REFERENCE_NAMES, documented_parameters
from tests.stores.parameter_rows import Json, Row, run_row
from tests.stores.parameters_cluster import CLUSTER
from tests.stores.parameters_durable import DURABLE, TEMPLATE
from tests.stores.parameters_store import STORE

from holdfast.stores.definitions.cluster import (
    PARAMETER_TYPES,
    ClusterDefinition,
    DurableDefinition,
    DurableType,
    StoreDefinition,
)

TABLES = (CLUSTER, STORE, DURABLE, TEMPLATE)
ROWS = [row for table in TABLES for row in table.rows]
DOCUMENTED = documented_parameters()
WITH_A_ROW = {(row.section, row.parameter) for row in ROWS}
NOT_PARAMETERS = {
    ClusterDefinition: {"stores", "permissions", "sections_given"},
    StoreDefinition: {"name"},
    DurableDefinition: {"name", "template"},
}
"""Fields of the decoded types that hold another thing, or the thing's own name."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_parameter_does_what_it_says(row: Row, tmp_path: Path) -> None:
    run_row(row, tmp_path)


# ---- nothing is without a row ---------------------------------------------------------------------------------------


def has_row(section: str, parameter: str) -> bool:
    """A durable's parameter that only templates have has its row there."""
    return (section, parameter) in WITH_A_ROW or (section == "durable" and ("template", parameter) in WITH_A_ROW)


@pytest.mark.parametrize("documented", DOCUMENTED, ids=lambda one: f"{one.section}.{one.name}")
def test_no_documented_parameter_is_without_a_row(documented) -> None:
    assert has_row(documented.section, documented.name)


@pytest.mark.parametrize(
    ("section", "kind"),
    [("cluster", ClusterDefinition), ("store", StoreDefinition), ("durable", DurableDefinition)],
)
def test_no_parameter_that_is_decoded_is_without_a_row_and_a_document(section: str, kind: type) -> None:
    decoded = {field.name.removesuffix("_ms") for field in dataclasses.fields(kind)} - NOT_PARAMETERS[kind]
    assert {name for name in decoded if not has_row(section, name)} == set()
    parts = {"type", "durables", "templates"}  # a table, or a definition, of their own
    assert decoded - parts == {one.name for one in DOCUMENTED if one.section == section}


@pytest.mark.parametrize("parameter", PARAMETER_TYPES)
def test_every_type_of_durable_that_has_a_parameter_has_a_row_of_it(parameter: str) -> None:
    seen = {DurableType(row.kind) for row in ROWS if row.parameter == parameter and row.section != "store"}
    assert seen >= PARAMETER_TYPES[parameter]


@pytest.mark.parametrize("name", REFERENCE_NAMES)
def test_every_parameter_of_the_reference_system_has_its_row(name: str) -> None:
    section, _, parameter = REFERENCE_NAMES[name].partition(".")
    assert has_row(section, parameter)


@pytest.mark.parametrize("name", NOT_HERE)
def test_a_parameter_that_is_not_here_is_told(name: str) -> None:
    said = " ".join((DOCUMENTS / "stores-compared.md").read_text().split())
    assert NOT_HERE[name] in said


# ---- what is written is so ------------------------------------------------------------------------------------------


def test_every_default_is_what_the_reference_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        durables = {str(kind): {"type": str(kind)} for kind in DurableType}
        async with stores_serving(tmp_path, definition={"stores": {"orders": {"durables": durables}}}) as stores:
            in_force: Json = (await stores.ask("GET", "/v1/cluster/definition")).json["definition"]
            store = in_force["stores"]["orders"]
            for one in DOCUMENTED:
                if one.section == "durable":
                    shown = [store["durables"][str(kind)][one.name] for kind in sorted(one.types)]
                else:
                    shown = [(in_force["cluster"] if one.section == "cluster" else store)[one.name]]
                assert shown == [one.default] * len(shown), f"{one.section}.{one.name}"

    run(scenario)


def test_every_type_takes_the_parameters_that_the_reference_gives_it_and_no_others(tmp_path: Path) -> None:
    """Each parameter given to each type with its default: taken, or refused by its path."""

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            for one in (one for one in DOCUMENTED if one.section == "durable"):
                assert one.types == PARAMETER_TYPES[one.name], one.name
                for kind in DurableType:
                    template = {"type": str(kind), one.name: one.default}
                    document = {"stores": {"orders": {"templates": {"jobs": template}}}}
                    answered = await stores.ask("POST", "/v1/cluster/definition/check", document)
                    if kind in one.types:
                        assert answered.status == 200, (one.name, kind, answered.body)
                    else:
                        assert answered.code == "bad_configuration", (one.name, kind)
                        assert f"stores.orders.templates.jobs.{one.name}: " in answered.json["error"]["message"]

    run(scenario)


def test_a_dynamic_durable_has_every_parameter_of_its_template(tmp_path: Path) -> None:
    async def scenario() -> None:
        rows = [row for row in ROWS if row.section == "durable" and row.parameter != "type"]
        templates = {
            f"jobs-{number}": {"type": row.kind, row.parameter: row.value, **row.beside}
            for number, row in enumerate(rows)
        }
        definition = {"stores": {"orders": {"templates": templates}, "dead": {}}}
        async with stores_serving(tmp_path, definition=definition) as stores:
            for name, row in zip(templates, rows, strict=True):
                made = (await stores.ask("PUT", f"/v1/stores/orders/durables/of-{name}", {"template": name})).json
                assert (made["template"], made[row.parameter]) == (name, row.value), row.name

    run(scenario, seconds_max=60)
