"""The OpenAPI 3.1 document, made from the route table and the types that decode and encode. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from holdfast.errors import Code
from holdfast.server.http.auth import Role
from holdfast.server.http.responses import STATUS_OF
from holdfast.server.http.routes import ANY_ROUTE_CODES, Route
from holdfast.wire.log import ErrorResponse

Json = dict[str, object]

_TEXT_TYPES: Final = frozenset({"JsonDelete", "JsonPointRead", "JsonRangeDelete", "JsonRangeRead", "JsonWrite"})
_PUBLISHED_NAMES: Final[Mapping[str, str]] = {
    "BatchReceipt": "PublishAnswer",
    "CommitReceipt": "CommittedAnswer",
    "Entry": "EntryAnswer",
    "ItemError": "StreamErrorAnswer",
    "NotCommitted": "NotCommittedAnswer",
    "Page": "BrowsedAnswer",
    "StatusAnswer": "StatusAnswerBody",
}
"""Names of types in generated clients."""
_ALWAYS_WHOLE: Final = frozenset(
    {
        "BrowsedAnswer",
        "ChangedAnswer",
        "CommittedAnswer",
        "EntriesAnswer",
        "NotCommittedAnswer",
        "PublishAnswer",
        "PurgedAnswer",
        "RedeliveredAnswer",
        "StreamErrorAnswer",
        "ValueRange",
        "VersionAnswer",
    }
)
"""Responses that this service sends with every field. The defaults are for programs that construct them."""
_REF: Final = "#/components/schemas/{name}"
_STATUS_TEXT: Final[Mapping[int, str]] = {
    400: "The request is wrong as it stands",
    401: "A valid bearer token is needed",
    403: "The token has not the role",
    404: "There is no such thing",
    405: "The route exists, with another method",
    409: "It does not fit the state of the log or of its leader",
    410: "That part of the log is gone",
    412: "What the request presumes does not hold: the key's revision, or a quorum",
    413: "The request is larger than the bound",
    421: "A service without tokens, and the request names another host than this one",
    429: "The client is over its own limit",
    431: "The head of the request is larger than the bound",
    500: "A bug of the service, or a damaged log, which is named by slot and rule",
    503: "Not now: wait for Retry-After, or go to the leader that is named",
    504: "The outcome is unknown: ask the status",
    507: "The disk is filled to its limit: publishing goes on when space is free again",
}


def describe(routes: Iterable[Route], *, version: str, with_tokens: bool) -> bytes:
    """The document as JSON bytes."""
    rows = list(routes)
    types: list[object] = [ErrorResponse]
    for row in rows:
        for kind in (*(row.body or {}).values(), *row.answers.values()):
            types += _alternatives(kind)
    schemas, components = _schemas(types)
    for name in components.keys() & _TEXT_TYPES:
        _exclude_each_other(components[name])
    schema_of = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, Json] = {}
    for row in rows:
        paths.setdefault(row.name, {})[row.method.lower()] = _operation(row, schema_of, with_tokens)
    security: Json = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if with_tokens else {}
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast commit log",
            "version": version,
            "summary": "Transactions in, one total order out, durable before they are answered",
            "description": "A query parameter or a field that is not described is refused as malformed, never ignored.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components, **security},
    }
    return msgspec.json.encode(document)


def _schemas(types: Sequence[object]) -> tuple[tuple[Json, ...], dict[str, Json]]:
    plain = msgspec.json.schema_components(types, ref_template=_REF)
    text = re.sub(
        r'"(#/components/schemas/)?([A-Z]\w+)"',
        lambda found: f'"{found[1] or ""}{_PUBLISHED_NAMES.get(found[2]) or found[2].replace("Response", "Answer")}"',
        msgspec.json.encode(plain).decode(),
    )
    schemas, components = msgspec.json.decode(text, type=tuple[tuple[Json, ...], dict[str, dict[str, Any]]])
    for name in components.keys() & _ALWAYS_WHOLE:
        properties = components[name]["properties"]
        components[name]["required"] = list(properties)
        for schema in properties.values():
            schema.pop("default", None)
            if name == "VersionAnswer" and "anyOf" in schema:  # None is what a client has from a service before log ids
                schema.clear()
                schema["type"] = "string"
    return schemas, components


def _exclude_each_other(schema: dict[str, Any]) -> None:
    """State that a field and its text form exclude each other."""
    rules: list[Json] = []
    for name in schema["properties"]:
        text = f"{name}_text"
        if text in schema["properties"]:
            both: Json = {"required": [name, text]}
            rules.append({"not": both} if name == "end" else {"oneOf": [{"required": [name]}, {"required": [text]}]})
    schema["allOf"] = rules


def _alternatives(kind: object) -> list[object]:
    """The types of a body: none for free text, several where an item is one of them."""
    if kind is None:
        return []
    return list(cast(tuple[object, ...], kind)) if isinstance(kind, tuple) else [kind]


def _schema(kind: object, schema_of: Mapping[int, Any]) -> Json:
    schemas = [schema_of[id(alternative)] for alternative in _alternatives(kind)]
    if not schemas:
        return {}
    return {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}


def _operation(row: Route, schema_of: Mapping[int, Any], with_tokens: bool) -> Json:
    operation: Json = {
        "operationId": re.sub(r"[^a-z0-9]+", "_", f"{row.method.lower()}{row.name.lower()}").strip("_"),
        "summary": row.summary,
        "tags": [row.tag],
        "responses": _responses(row, schema_of),
    }
    if row.parameters:
        operation["parameters"] = [
            {
                "name": parameter.name,
                "in": parameter.place,
                "required": parameter.required,
                "description": parameter.description,
                "schema": dict(parameter.schema),
            }
            for parameter in row.parameters
        ]
    if row.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {media_type: _schema(kind, schema_of) for media_type, kind in row.body.items()},
        }
    need = row.need
    if need.right is not None:
        if with_tokens:
            operation["security"] = [{"token": []}]
        others = "".join(f"; {kind} the right {right}" for kind, right in need.others.items())
        operation["description"] = f"Needs the right {need.right}, where permissions are on{others}."
    elif with_tokens and need.role is not Role.OPEN:
        operation["security"] = [{"token": []}]
        operation["description"] = f"Needs the role {need.role.name.lower()}."
    return operation


def _responses(row: Route, schema_of: Mapping[int, Any]) -> Json:
    content: Json = {media_type: _schema(kind, schema_of) for media_type, kind in row.answers.items()}
    responses: Json = {"200": {"description": row.summary, "content": content}}
    by_status: dict[int, list[Code]] = {}
    for code in (*ANY_ROUTE_CODES, *row.codes):
        codes = by_status.setdefault(STATUS_OF[code], [])
        if code not in codes:
            codes.append(code)
    by_status[431] = [Code.TOO_LARGE]
    for status, codes in sorted(by_status.items()):
        responses[str(status)] = _error_response(status, codes, schema_of)
    return responses


def _error_response(status: int, codes: Sequence[Code], schema_of: Mapping[int, Any]) -> Json:
    names = [str(code) for code in codes]
    its_codes = {"properties": {"error": {"properties": {"code": {"enum": names}}}}}
    response: Json = {
        "description": f"{_STATUS_TEXT[status]}: {', '.join(names)}",
        "content": {"application/json": {"schema": {"allOf": [schema_of[id(ErrorResponse)], its_codes]}}},
    }
    if status in (429, 503):
        response["headers"] = {
            "Retry-After": {"description": "Whole seconds to wait", "schema": {"type": "integer", "minimum": 1}}
        }
    return response
