"""Files that people write: TOML, YAML or JSON, by the ending of their name, with the line of each key.

A file that cannot be read, is not of its format, or has a key twice raises ``InvalidRequest`` (code
``bad_configuration``) with the file, and the line where it is known. What is read has ``Bounds``: bytes, compared
before anything is parsed; values, with the aliases of YAML expanded; and levels, counted before anything recurses. A
command reads files in its own process. A process that serves others reads only small texts (``document_process``).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

from holdfast.errors import Code, InvalidRequest
from holdfast.extras import MissingExtra, needs
from holdfast.values import pairs_once

YAML_ENDINGS: Final = (".yaml", ".yml")
DEPTH_MAX: Final = 100
ENDINGS: Final = (".toml", *YAML_ENDINGS, ".json")
_MERGE: Final = "tag:yaml.org,2002:merge"
_TAGS: Final = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_NAME: Final = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_NAMES: Final = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_TABLE: Final = re.compile(rf"\s*\[\[?\s*({_NAMES})\s*\]")
_VALUE: Final = re.compile(rf"\s*({_NAMES})\s*=")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a document may have, besides ``DEPTH_MAX`` levels: bytes of its text, and values."""

    bytes_max: int
    nodes_max: int

    def require_size(self, size: int) -> None:
        """Return if a text of this size may be parsed. Raises: AboveBounds."""
        if size > self.bytes_max:
            raise AboveBounds(f"it has more than {self.bytes_max} bytes")


FILE: Final = Bounds(32 << 20, 1_000_000)
"""A file that its own user wrote."""
FORM: Final = Bounds(256 << 10, 100_000)
"""A text that somebody else sent."""


class AboveBounds(ValueError):
    """A document is larger than it may be."""


@dataclass(frozen=True)
class Document:
    """The contents of a file. ``value`` consists of maps, lists, text, numbers, booleans and None."""

    path: Path
    value: object
    find_lines: Callable[[], Mapping[str, int]]

    @cached_property
    def lines(self) -> Mapping[str, int]:
        """The line of each key, by its path with dots, the first line being 1. *Cost*: reads the text again."""
        return self.find_lines()

    def line_of(self, path: str) -> int | None:
        """The line of a key, or of the nearest around it; None where that is not known."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path.rpartition(".")[0]
        return None


def read_document(path: Path) -> Document:
    """Read a file: TOML where its name ends in ``.toml``, YAML in ``.yaml`` or ``.yml``, else JSON. *Raises*:
    ``InvalidRequest``, code ``bad_configuration``."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE.bytes_max + 1)
        FILE.require_size(len(data))
        text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
        if path.suffix in YAML_ENDINGS:
            value, lines = read_yaml(text, FILE)
            return Document(path, value, lambda: lines)
        if path.suffix == ".toml":
            value, find_lines = tomllib.loads(text), _toml_lines
        else:
            value, find_lines = json.loads(text, object_pairs_hook=pairs_once), _json_lines
        _check_values(value, FILE)
        return Document(path, value, lambda: find_lines(text))
    except MissingExtra:
        raise
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    except RecursionError as error:
        raise _refused(path, "it has too many levels") from error
    except ValueError as error:
        raise _refused(path, str(error)) from error


def _refused(path: Path, reason: str) -> InvalidRequest:
    hint = ""
    if path.suffix not in ENDINGS:
        hint = "the end of the name decides the format, .toml, .yaml, .yml or .json; any other file is read as JSON"
    return InvalidRequest(f"{path} cannot be read: {reason}", code=Code.BAD_CONFIGURATION, hint=hint)


# ---- YAML -----------------------------------------------------------------------------------------------------------


def read_yaml(text: str, bounds: Bounds = FILE) -> tuple[object, dict[str, int]]:
    """The value and the lines of a YAML document; None where it is empty. Raises ``ValueError`` with the line, of which
    ``AboveBounds`` is one."""
    with needs("server"):
        import yaml  # by the few commands that read such a file

    bounds.require_size(len(text.encode("utf-8", "replace")))
    # The compiled loader is ten times as fast; where it is not installed the other one gives the same result.
    made_by = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_bounds(yaml.parse(text, Loader=made_by), bounds)  # the loader recurses into what it composes
        loader = made_by(text)
        try:
            node = loader.get_single_node()
            reader = _YamlReader(loader, bounds)
            return (None if node is None else reader.value(node, "", 0)), reader.lines
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(_yaml_reason(text, error)) from error


def _check_values(value: object, bounds: Bounds) -> None:
    """Raises ``AboveBounds`` where a value has too many values or levels in it. It does not recurse."""
    level, depth, count = [value], 0, 0
    while level:
        count += len(level)
        if count > bounds.nodes_max or depth > DEPTH_MAX:
            raise AboveBounds(f"more than {bounds.nodes_max} values or {DEPTH_MAX} levels")
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += cast("dict[str, object]", one).values()
            elif isinstance(one, list):
                inner += cast("list[object]", one)
        level, depth = inner, depth + 1


def _check_bounds(events: Iterable[Any], bounds: Bounds) -> None:
    """Raises ``AboveBounds`` at the first event above a bound. Events come from a machine that does not recurse."""
    depth = 0  # a value is one event, a map or a list two
    for number, event in enumerate(events):
        kind = type(event).__name__
        depth += kind in ("MappingStartEvent", "SequenceStartEvent")
        depth -= kind in ("MappingEndEvent", "SequenceEndEvent")
        if number > 2 * bounds.nodes_max or depth > DEPTH_MAX:
            raise _too_much(event.start_mark.line + 1, bounds)


def _too_much(line: int, bounds: Bounds) -> AboveBounds:
    return AboveBounds(f"line {line}: more than {bounds.nodes_max} values or {DEPTH_MAX} levels")


def _yaml_reason(text: str, error: Any) -> str:
    """One line: where the text is wrong, and what the parser expected."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        problem = getattr(error, "problem", None) or "it is wrong"
        context = getattr(error, "context", None)
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" + (f" ({context})" if context else "")
    position, reason = getattr(error, "position", None), getattr(error, "reason", None)
    if isinstance(position, int) and reason:
        column = position - text.rfind("\n", 0, position)
        return f"line {text.count(chr(10), 0, position) + 1}, column {column}: {reason}"
    return " ".join(str(error).split())


class _YamlReader:
    """Makes values of the nodes of one document. ``loader`` is PyYAML's, which knows what a scalar is."""

    def __init__(self, loader: Any, bounds: Bounds) -> None:
        self._loader = loader
        self._bounds = bounds
        self._nodes = 0
        self._merged: dict[int, dict[str, tuple[Any, Any]]] = {}
        """The entries of each mapping with those that it merges, by the identity of its node."""
        self.lines: dict[str, int] = {}

    def value(self, node: Any, path: str, depth: int) -> object:
        """The value of a node. Raises: ValueError."""
        self._nodes += 1
        line = node.start_mark.line + 1
        if self._nodes > self._bounds.nodes_max or depth > DEPTH_MAX:
            raise _too_much(line, self._bounds)
        if node.id != "scalar" and node.tag not in _TAGS:
            raise ValueError(f"line {line}: there is no type {node.tag}")
        if node.id == "mapping":
            return self._mapping(node, path, depth)
        if node.id == "sequence":
            return [self.value(one, path, depth + 1) for one in node.value]
        value = self._loader.construct_object(node)
        if value is None or isinstance(value, str | int | float):
            return value
        raise ValueError(f"line {line}: {node.value!r} is of YAML's type {type(value).__name__}: put it in quotes")

    def _mapping(self, node: Any, path: str, depth: int) -> dict[str, object]:
        values: dict[str, object] = {}
        for name, (key, one) in self._entries(node, depth).items():
            inner_path = f"{path}.{name}" if path else name
            self.lines[inner_path] = key.start_mark.line + 1
            values[name] = self.value(one, inner_path, depth + 1)
        return values

    def _entries(self, node: Any, depth: int) -> dict[str, tuple[Any, Any]]:
        """Key and value nodes of a mapping by name, after those that ``<<`` names and it does not have itself. Each
        mapping is merged once, and each entry of the result is counted. Raises: ValueError."""
        known = self._merged.get(id(node))
        if known is not None:
            return known
        if depth > DEPTH_MAX:
            raise _too_much(node.start_mark.line + 1, self._bounds)
        own: dict[str, tuple[Any, Any]] = {}
        merged: dict[str, tuple[Any, Any]] = {}
        for key, one in node.value:
            line = key.start_mark.line + 1
            if key.id != "scalar":
                raise ValueError(f"line {line}: a key is a text")
            name = str(key.value)
            if name in own:
                first = own[name][0].start_mark.line + 1
                raise ValueError(f"line {line}: {name!r} is given twice, first on line {first}")
            own[name] = key, one
            if key.tag == _MERGE:
                merged = self._named_by(one, line, depth)
        entries = merged | {name: pair for name, pair in own.items() if pair[0].tag != _MERGE}
        self._nodes += len(entries)
        if self._nodes > self._bounds.nodes_max:
            raise _too_much(node.start_mark.line + 1, self._bounds)
        self._merged[id(node)] = entries
        return entries

    def _named_by(self, node: Any, line: int, depth: int) -> dict[str, tuple[Any, Any]]:
        """The entries that a ``<<`` merges: of one mapping, or of a list where the first with a key wins."""
        named: dict[str, tuple[Any, Any]] = {}
        for one in reversed(node.value) if node.id == "sequence" else [node]:
            if one.id != "mapping":
                raise ValueError(f"line {line}: << takes a map, or a list of maps")
            entries = self._entries(one, depth + 1)
            self._nodes += len(entries)
            if self._nodes > self._bounds.nodes_max:
                raise _too_much(line, self._bounds)
            named.update(entries)
        return named


# ---- lines of the others --------------------------------------------------------------------------------------------


def _json_lines(text: str) -> Mapping[str, int]:
    """JSON is YAML, except for a few characters in texts: a file with those has no known lines."""
    try:
        return read_yaml(text)[1]
    except ValueError:
        return {}


def _toml_lines(text: str) -> Mapping[str, int]:
    """Where tables and keys begin. A line within a text of several lines may look like one: lines are for people."""
    table: list[str] = []
    line_numbers: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if begins := _TABLE.match(line):
            table = _names(begins[1])
            names = table
        elif given := _VALUE.match(line):
            names = table + _names(given[1])
        else:
            continue
        line_numbers.setdefault(".".join(names), number)
    return line_numbers


def _names(text: str) -> list[str]:
    return [cast(str, name).strip("\"'") for name in re.findall(_NAME, text)]
