"""Documents of the message stores: parameters as a person edits them, and their counts."""

from __future__ import annotations

from typing import Final, cast

import yaml

from holdfast.console.reading.service import Document, document, number
from holdfast.errors import InvalidRequest
from holdfast.files.document_process import DocumentReader

COUNTS: Final = "counts"
NOT_PARAMETERS: Final = frozenset(
    {"name", "store", "dynamic", "template", COUNTS, "subscribers", "durables", "templates", "locks"}
)


def yaml_of(value: object) -> str:
    """A document as a person edits it."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=False)


async def document_of(text: str, what: str, reader: DocumentReader) -> Document:
    """A document that a person wrote as YAML or JSON; nothing is an empty one. Raises: InvalidRequest."""
    try:
        value = await reader.read(text) if text.strip() else {}
    except ValueError as error:
        raise InvalidRequest(f"{what} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} must be a map, such as name: value")
    return cast(Document, value)


def count_of(part: Document, name: str) -> float:
    """One of a document's counts."""
    return number(document(part.get(COUNTS)).get(name))


def name_of(part: Document) -> str:
    """Its name."""
    return str(part["name"])
