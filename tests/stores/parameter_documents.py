"""What is written about parameters: the tables of the reference, and the names that the reference system has for them.

Owns: reading the tables of ``docs/reference/stores.md``. Does not own: the parameters
(``holdfast.stores.definitions``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from holdfast.stores.definitions.cluster import DurableType

DOCUMENTS = Path(__file__).parents[2] / "docs" / "reference"
EVERY_TYPE = frozenset(DurableType)
SECTIONS = {"cluster": "## The cluster", "store": "## A store", "durable": "## A durable, or a template of durables"}
UNITS = {"s": 1, "days": 86_400, "MiB": 1 << 20}


@dataclass(frozen=True)
class Documented:
    """One parameter as its row in the reference tells of it."""

    section: str
    name: str
    default: object
    """As a definition shows it."""
    types: frozenset[DurableType]
    """Of a durable's parameter: the types that have it."""
    meaning: str


def documented_parameters() -> list[Documented]:
    """Every row of the three tables of parameters."""
    text = (DOCUMENTS / "stores.md").read_text()
    found: list[Documented] = []
    for section, heading in SECTIONS.items():
        (body,) = re.findall(rf"^{re.escape(heading)}\n(.*?)(?=^## )", text, re.DOTALL | re.MULTILINE)
        (table,) = re.findall(r"^\| parameter \|.*\n\|[-|]+\n((?:\|.*\n)+)", body, re.MULTILINE)
        for line in table.splitlines():
            names, defaults, *types, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            found += _rows(section, names, defaults, types[0] if types else "", meaning)
    return found


def _rows(section: str, names: str, defaults: str, types: str, meaning: str) -> list[Documented]:
    """The parameters that share one line: each with its own default, or all with the one."""
    found = re.findall(r"`(\w+)`", names)
    each = defaults.split(";") if ";" in defaults else [defaults] * len(found)
    return [
        Documented(section, name, _value(name, default.strip()), _types(types), meaning)
        for name, default in zip(found, each, strict=True)
    ]


def _value(name: str, text: str) -> object:
    """A default as a definition shows it.

    >>> _value("ack_wait", "30 s"), _value("discard", "`new`"), _value("bytelimit", "none")
    (30, 'new', 0)
    """
    words = {"true": True, "false": False, "everything": {}, "this service": [], "none": 0}
    if text in words:
        return words[text]
    if not text:
        return {} if name == "subscribers" else ""
    if text.startswith("`"):
        return text.strip("`")
    number, _, unit = text.replace(",", "").partition(" ")
    value = float(number) if "." in number else int(number)
    return value * UNITS[unit] if unit else value


def _types(text: str) -> frozenset[DurableType]:
    """Types in words: ``all``, ``all but map``, ``standard, shared``."""
    if not text:
        return frozenset()
    if text.startswith("all"):
        return EVERY_TYPE - {
            DurableType(word) for word in text.removeprefix("all").removeprefix(" but ").split() if word
        }
    return frozenset(DurableType(word.strip()) for word in text.split(","))


REFERENCE_NAMES: dict[str, str] = {
    # of a store
    "replicated": "store.replicated",
    "publisher_settings.mode": "store.publisher_mode",
    "bytelimit": "store.bytelimit",
    "message_limit": "store.message_limit",
    "max_message_size": "store.max_message_size",
    "dynamic_durable_limit": "store.dynamic_durable_limit",
    "swap_bytelimit": "store.swap_bytelimit",
    "durables": "store.durables",
    "durable_templates": "store.templates",
    "description": "store.description",
    # of a durable
    "type": "durable.type",
    "matcher": "durable.matcher",
    "prefetch": "durable.prefetch",
    "ack_settings.mode": "durable.ack_mode",
    "ack_settings.batch_count": "durable.ack_batch_count",
    "ack_settings.batch_time": "durable.ack_batch_time",
    "message_ttl": "durable.message_ttl",
    "durable_ttl": "template.durable_ttl",
    "durable message_limit": "durable.message_limit",
    "durable bytelimit": "durable.bytelimit",
    "discard": "durable.discard",
    "max delivery attempts": "durable.max_delivery",
    "retention_time": "durable.retention_time",
    "durable swap_bytelimit": "durable.swap_bytelimit",
    "key field": "durable.key_field",
    # of a cluster
    "client_timeout_pserver": "durable.subscriber_timeout",
    "disk_persistence": "cluster.persistence",
    "disk_swap": "cluster.swap",
    "disk_compact": "cluster.disk_compact",
    "disk_compact_settings.min_disk_inuse_ratio": "cluster.min_disk_inuse_ratio",
    "cluster bytelimit": "cluster.bytelimit",
    "cluster message_limit": "cluster.message_limit",
    "pservers[]": "cluster.services",
    "max.disk.fraction": "cluster.max_disk_fraction",
    "max_deployment_history": "cluster.max_deployment_history",
}
"""The parameters of stores, durables and clusters of the reference system that one service can have, and our row."""

NOT_HERE: dict[str, str] = {
    "zones": "zones and wide-area stores",
    "dr_enabled": "disaster recovery",
    "pserver_pserver_heartbeat": "Several services in one cluster",
    "weight": "Several services in one cluster",
    "nolocal.message.delivery": "no-local delivery",
}
"""What it has and this has not, and the words with which the comparison says so."""
