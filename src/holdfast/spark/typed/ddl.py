"""A schema in Spark's DDL syntax, as an Arrow type, without a Spark session.

``origin string, delay int`` is a struct; a type alone, such as ``array<string>``, is that type. Names in backquotes may
contain any character except quotes, backslashes and control characters; two names that differ only in case are refused,
as in Spark. ``NOT NULL`` makes a field required in a value; its column may still be null, for example of a delete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from holdfast.errors import InvalidRequest
from holdfast.spark.runtime.refusals import bad_configuration

_SCALARS: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SYNONYMS: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
DECIMAL_DIGITS_MAX: Final = 38
_NESTING_MAX: Final = 32
_TOKEN: Final = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<text>'[^']*')|(?P<mark>[<>(),:]))")
_FORBIDDEN: Final = re.compile(r"[\"\\\x00-\x1f]")


def parse_schema(text: str) -> pa.DataType:
    """The type that the text describes. Raises: InvalidRequest naming the place and what is valid there.

    >>> parse_schema("origin string, delay int")
    StructType(struct<origin: string, delay: int32>)
    >>> parse_schema("array<decimal(9,2)>")
    ListType(list<element: decimal128(9, 2)>)
    """
    parser = _Parser(_tokens(text))
    kind = parser.type(0) if parser.is_type() else parser.fields(0, end="")
    parser.expect("")
    return kind


def type_text(kind: pa.DataType) -> str:
    """The type in the syntax that ``parse_schema`` reads.

    >>> type_text(parse_schema("struct<a: int, `b c`: map<string, double>>"))
    'struct<`a`:int,`b c`:map<string,double>>'
    """
    if pa.types.is_struct(kind):
        return f"struct<{','.join(_field_text(each) for each in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)},{type_text(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for name, each in _SCALARS.items() if each == kind), str(kind))


def _field_text(field: pa.Field) -> str:
    required = "" if field.nullable else " not null"
    return f"`{field.name.replace('`', '``')}`:{type_text(field.type)}{required}"


def _refused(reason: str) -> InvalidRequest:
    return bad_configuration(
        f"schema cannot be read: {reason}",
        hint="give SQL types, for example: origin string, delay int, tags array<string>",
    )


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise _refused(f"unexpected {text[position:].strip()[:20]!r}")
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: Sequence[str]) -> None:
        if not tokens:
            raise _refused("it is empty")
        self._tokens = [*tokens, ""]
        self._at = 0

    def is_type(self) -> bool:
        """Whether the text is a type alone, and not a list of fields."""
        return self._tokens[1] in ("", "<", "(")

    def expect(self, token: str) -> None:
        next_token = self._tokens[self._at]
        if next_token.lower() != token:
            wanted = f"{token!r}" if token else "the end"
            raise _refused(f"{wanted} is expected where {next_token!r} is" if next_token else f"{wanted} is missing")
        self._at += 1

    def _accept(self, token: str) -> bool:
        accepted = self._tokens[self._at].lower() == token
        self._at += accepted
        return accepted

    def fields(self, depth: int, end: str) -> pa.DataType:
        fields: list[pa.Field] = []
        names: set[str] = set()
        while True:
            name = self._name()
            if name.casefold() in names:
                raise _refused(f"field {name} is there twice; the case of letters does not count")
            names.add(name.casefold())
            self._accept(":")
            kind = self.type(depth)
            nullable = not self._accept("not")
            if not nullable:
                self.expect("null")
            if self._accept("comment"):
                if not self._tokens[self._at].startswith("'"):
                    raise _refused("a comment is a text in single quotes")
                self._at += 1
            fields.append(pa.field(name, kind, nullable=nullable))
            if not self._accept(","):
                break
        if end:
            self.expect(end)
        return pa.struct(fields)

    def _name(self) -> str:
        token = self._tokens[self._at]
        name = token[1:-1].replace("``", "`") if token.startswith("`") else token
        if not name or not (token.startswith("`") or re.fullmatch(r"\w+", token)) or _FORBIDDEN.search(name):
            raise _refused(f"a name is expected where {token!r} is" if token else "a name is missing")
        self._at += 1
        return name

    def type(self, depth: int) -> pa.DataType:
        if depth > _NESTING_MAX:
            raise _refused(f"types are nested more than {_NESTING_MAX} deep")
        token = self._tokens[self._at]
        self._at += bool(token)
        name = _SYNONYMS.get(token.lower(), token.lower())
        match name:
            case "array":
                self.expect("<")
                element = self.type(depth + 1)
                self.expect(">")
                return pa.list_(pa.field("element", element))
            case "map":
                return self._map(depth)
            case "struct":
                self.expect("<")
                return self.fields(depth + 1, end=">")
            case "decimal" | "numeric" | "dec":
                return self._decimal()
            case _ if name in _SCALARS:
                return _SCALARS[name]
            case _:
                valid = ", ".join([*_SCALARS, "decimal(p,s)", "array<..>", "map<string,..>", "struct<..>"])
                what = f"{token!r} is not a type" if token else "a type is missing"
                raise _refused(f"{what}; valid: {valid}")

    def _map(self, depth: int) -> pa.DataType:
        self.expect("<")
        key = self.type(depth + 1)
        if key != pa.string():
            raise _refused("the keys of a map are strings")
        self.expect(",")
        item = self.type(depth + 1)
        self.expect(">")
        return pa.map_(key, item)

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = self._number()
            if self._accept(","):
                scale = self._number()
            self.expect(")")
        if not 1 <= precision <= DECIMAL_DIGITS_MAX or scale > precision:
            raise _refused(f"decimal({precision},{scale}) has 1 to {DECIMAL_DIGITS_MAX} digits, and at least its scale")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._tokens[self._at]
        if not (token.isascii() and token.isdigit() and len(token) < 4):
            raise _refused(f"a number is expected where {token!r} is")
        self._at += 1
        return int(token)
