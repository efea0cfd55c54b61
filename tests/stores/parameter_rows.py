"""A table with a row for each parameter of message stores: what is set, and what is sent and seen over HTTP.

Owns: the row, how a row is run against a whole server on a real directory, the words that rows share. Does not own: the
rows (``parameters_cluster``, ``parameters_store``, ``parameters_durable``), what the documentation says
(``parameter_documents``).

A row defines the store ``orders`` with the durable ``work`` (shared, where nothing else is said), the store ``other``
with its own ``work``, and ``dead`` with ``all`` for dead letters. A row that returns a function is restarted, and the
function sees what is there then.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.http_harness import run
from tests.integration.stores_harness import StoresServing, stores_serving, text64

from holdfast.stores.definitions.cluster import PARAMETER_TYPES

Json = dict[str, Any]
Seen = Callable[[StoresServing], Awaitable[Any]]

PATIENT: Json = {"subscriber_timeout": 3_600, "ack_wait": 3_600}
"""So that no row depends on how fast it is: who polls stays attached, and what is held stays held."""
SHARED: Json = {"type": "shared", **PATIENT}
ORDERS = "/v1/stores/orders"
WORK = f"{ORDERS}/durables/work"
ROW_SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Row:
    """One parameter with one value."""

    section: str
    """cluster, store, durable or template."""
    parameter: str
    value: object
    beside: Json
    """What else is set in the same section."""
    around: Json
    """What is set in the sections above it: of the store, of the cluster."""
    kind: str
    """The type of the durable."""
    seen: Seen = field(compare=False)

    @property
    def name(self) -> str:
        """How pytest shows it."""
        of_type = f"-{self.kind}" if self.kind != "shared" else ""
        return f"{self.section}.{self.parameter}={self.value}{of_type}".replace("\n", "").replace(" ", "")

    def definition(self) -> Json:
        """The whole definition."""
        given = {self.parameter: self.value, **self.beside}
        cluster = {**self.around.get("cluster", {}), **(given if self.section == "cluster" else {})}
        orders: Json = {**self.around.get("store", {}), **(given if self.section == "store" else {})}
        orders.setdefault("durables", {"work": SHARED})
        if self.section == "durable":
            patient = {name: time for name, time in PATIENT.items() if self.kind in PARAMETER_TYPES[name]}
            orders["durables"] = {"work": {"type": self.kind, **patient, **given}}
        if self.section == "template":
            orders["templates"] = {"jobs": {"type": self.kind, **given}}
        return {
            "cluster": cluster,
            "stores": {
                "orders": orders,
                "other": {"durables": {"work": SHARED}},
                "dead": {"durables": {"all": SHARED}},
            },
        }

    @property
    def shown_at(self) -> str:
        """Where the parameter in force is to be seen."""
        return {"cluster": "/v1/cluster", "store": ORDERS, "durable": WORK, "template": f"{ORDERS}/templates/jobs"}[
            self.section
        ]


class Table:
    """Rows, in the order in which they were written down."""

    def __init__(self, section: str) -> None:
        self.section = section
        self.rows: list[Row] = []

    def row(
        self, parameter: str, value: object, *, kind: str = "shared", around: Json | None = None, **beside: object
    ) -> Callable[[Seen], Seen]:
        """Write a row down: the function sends and sees."""

        def written(seen: Seen) -> Seen:
            self.rows.append(Row(self.section, parameter, value, beside, around or {}, kind, seen))
            return seen

        return written


def run_row(row: Row, directory: Path) -> None:
    """Set the value, see that it is in force, send and see; once more after a restart where the row asks for it."""

    async def scenario() -> None:
        async with stores_serving(directory, definition=row.definition()) as stores:
            shown = (await stores.ask("GET", row.shown_at)).json
            assert contains(shown[row.parameter], row.value), "what is set is in force as it was set"
            after_restart = await row.seen(stores)
        if after_restart is not None:
            async with stores_serving(directory) as stores:
                await after_restart(stores)

    run(scenario, seconds_max=ROW_SECONDS_MAX)


def contains(shown: object, value: object) -> bool:
    """Whether everything of ``value`` is in ``shown``, which may have defaults beside it."""
    if isinstance(value, dict) and isinstance(shown, dict):
        return all(key in shown and contains(shown[key], part) for key, part in value.items())
    return shown == value


# ---- words that rows share ------------------------------------------------------------------------------------------


async def send(stores: StoresServing, *bodies: str, store: str = "orders", **more: object) -> tuple[int, str]:
    """Publish one batch; the status and the code of a refusal."""
    batch = {"messages": [{"body": text64(body), **more} for body in bodies]}
    answered = await stores.ask("POST", f"/v1/stores/{store}/messages", batch)
    return answered.status, "" if answered.status == 200 else answered.code


async def numbered(stores: StoresServing, publisher: str, seq: int) -> tuple[int, str]:
    """Publish one message of a numbered publisher; the status and the code of a refusal."""
    batch = {"publisher_id": publisher, "messages": [{"publisher_seq": seq}]}
    answered = await stores.ask("POST", f"{ORDERS}/messages", batch)
    return answered.status, "" if answered.status == 200 else answered.code


async def refused(stores: StoresServing, document: Json) -> tuple[int, str, str]:
    """What a whole definition is refused with."""
    answered = await stores.ask("PUT", "/v1/cluster/definition", document)
    return answered.status, answered.code, answered.json["error"]["message"]


async def counts(stores: StoresServing, target: str = WORK) -> Json:
    """The counts of a durable or a store."""
    return dict((await stores.ask("GET", target)).json["counts"])


async def eventually(look: Callable[[], Awaitable[object]]) -> None:
    """Look again until it is so. The row's own bound ends it when that never comes."""
    while not await look():  # noqa: ASYNC110  # conditions of another process's side; nothing sets an event for them
        await asyncio.sleep(0.01)


def swapped_files(directory: str) -> int:
    """How many files without a name this process holds for bodies that were swapped to disk."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            place = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        found += place.startswith(os.path.realpath(directory)) and place.endswith("swap.tmp (deleted)")
    return found
