"""The public Python names as sorted lines of text, one fact a line, without the modules that define them.

A class is shown by its constructor, its public members and the protocols that it implements. Inherited members are
included when a class of Holdfast defines them; a base class of another package is shown by its name only. A class that
a public signature names is part of the surface too. It is shown without its constructor, unless it is plain data.

In a signature ``(1)`` is the first parameter, ``(1/)`` takes it by position only, ``(kw)`` takes it by name only.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from types import ModuleType, UnionType

import msgspec

__all__ = ["bare", "lines_of_module", "shown", "shown_text"]

OURS = ("holdfast", "pyspark_holdfast")
PROTOCOLS = {
    "__aenter__", "__aexit__", "__aiter__", "__anext__", "__await__", "__bool__", "__call__", "__contains__",
    "__delitem__", "__enter__", "__exit__", "__getitem__", "__iter__", "__len__", "__next__", "__setitem__",
}  # fmt: skip
PARAMETER_KINDS = inspect.Parameter
INNER = {"pool", "run", "session", "sleep", "watch"}
"""Members of the clients that are for the package's own other clients."""


class _WithoutModules(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """``Annotated[int, ...]`` is ``int``."""
        if isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Name(node.attr)


def bare(annotation: object) -> str:
    """An annotation as text without module paths.

    >>> bare("collections.abc.Sequence[bytes]")
    'Sequence[bytes]'
    """
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    try:
        return ast.unparse(_WithoutModules().visit(ast.parse(text, mode="eval")))
    except SyntaxError:
        return shown_text(text)


def shown(value: object) -> str:
    """A default as text: without addresses and module paths."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type) or inspect.isroutine(value):
        return value.__name__
    return shown_text(repr(value))


def shown_text(text: str) -> str:
    """A text without addresses and module paths."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z_a-z])|(?: object)? at 0x[0-9a-f]+", "", text)


def lines_of_module(module: ModuleType) -> list[str]:
    """Every fact about the names in ``__all__`` of a module. A package without such a list consists of its modules."""
    if not hasattr(module, "__all__"):
        return sorted(_lines_of_package(module))
    found: list[str] = []
    reached: list[type] = []
    public = [getattr(module, name) for name in module.__all__]
    for name, value in zip(module.__all__, public, strict=True):
        found += _lines_of_name(name, value, reached)
    described = {id(value): name for name, value in zip(module.__all__, public, strict=True)}
    while reached:
        kind = reached.pop()
        if id(kind) not in described:
            described[id(kind)] = kind.__name__
            found += _lines_of_class(kind.__name__, kind, reached, named=False)
    names = Counter(described.values())
    found += [f"{name} names {count} classes" for name, count in names.items() if count > 1]
    return sorted(set(found))


def _lines_of_package(package: ModuleType) -> Iterator[str]:
    """The modules of a package and the kinds of their public names."""
    for found in pkgutil.iter_modules(package.__path__):
        yield f"{found.name} {'package' if found.ispkg else 'module'}"
        module = importlib.import_module(f"{package.__name__}.{found.name}")
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            kind = "class" if inspect.isclass(value) else "function" if inspect.isroutine(value) else "constant"
            yield f"{found.name}.{name} {kind}"


def _lines_of_name(name: str, value: object, reached: list[type]) -> list[str]:
    if inspect.isclass(value):
        return _lines_of_class(name, value, reached, named=True)
    if inspect.isfunction(value):
        return _lines_of_function(name, value, "function", reached)
    if isinstance(value, ModuleType):
        return [f"{name} module"]
    if isinstance(value, UnionType):
        reached += [kind for kind in value.__args__ if _is_ours(kind)]
        return [f"{name} union of {kind.__name__}" for kind in value.__args__]
    return [f"{name} constant {type(value).__name__}"]


def _is_ours(kind: object) -> bool:
    return inspect.isclass(kind) and kind.__module__.partition(".")[0] in OURS and not kind.__name__.startswith("_")


def _lines_of_class(name: str, kind: type, reached: list[type], *, named: bool) -> list[str]:
    mark = "class" if named else "class that a signature names"
    bases = [base.__name__ for base in kind.__mro__[1:-1] if not base.__name__.startswith("_")]
    found = [f"{name} {mark}", *(f"{name} is a {base}" for base in bases if base != "Generic")]
    found += [f"{name} {trait}" for trait in _traits(kind)]
    if isinstance(kind, enum.EnumType):
        return [*found, *(f"{name}.{member.name} = {member.value!r}" for member in kind)]
    if named or _is_data(kind):
        found += _lines_of_constructor(name, kind, reached)
    for member, (owner, value) in sorted(_members(kind).items()):
        if member in INNER and name in ("Client", "StoreClient"):
            continue
        found += _lines_of_member(f"{name}.{member}", value, owner, reached)
    return found


def _is_data(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__") or hasattr(kind, "_fields")


def _traits(kind: type) -> Iterator[str]:
    if dataclasses.is_dataclass(kind):
        yield f"dataclass frozen={kind.__dataclass_params__.frozen}"
    config = getattr(kind, "__struct_config__", None)
    if config is not None:
        yield f"struct frozen={config.frozen} tag={config.tag_field}:{config.tag}"
    if inspect.isabstract(kind):
        yield "abstract"


def _lines_of_constructor(name: str, kind: type, reached: list[type]) -> list[str]:
    if hasattr(kind, "__struct_fields__"):
        return _lines_of_struct(name, kind, reached)
    try:
        signature = inspect.signature(kind)
    except ValueError:  # an exception without a constructor of its own
        return []
    return _lines_of_parameters(name, list(signature.parameters.values()), kind.__module__, reached)


def _lines_of_struct(name: str, kind: type, reached: list[type]) -> list[str]:
    """The fields of a struct in order. Its own signature evaluates annotations that only the type checker can."""
    fields, defaults = kind.__struct_fields__, kind.__struct_defaults__
    first_default = len(fields) - len(defaults)
    found: list[str] = []
    for place, (field, sent) in enumerate(zip(fields, kind.__struct_encode_fields__, strict=True)):
        owner = next(one for one in kind.__mro__ if field in inspect.get_annotations(one))
        annotation = owner.__annotations__[field]
        _reach(annotation, owner.__module__, reached)
        line = f"{name}({place + 1}) {field}: {bare(annotation)}"
        if place >= first_default and defaults[place - first_default] is not msgspec.NODEFAULT:
            line += f" = {shown(defaults[place - first_default])}"
        found.append(line if sent == field else f"{line}, sent as {sent}")
    return found


def _members(kind: type) -> dict[str, tuple[type, object]]:
    """The public members and the class that defines each, as attribute lookup finds them."""
    found: dict[str, tuple[type, object]] = {}
    for owner in reversed(kind.__mro__):
        if owner.__module__.partition(".")[0] not in OURS:
            continue
        for member in [*_assigned(owner), *inspect.get_annotations(owner)]:
            if not member.startswith("_"):
                found[member] = (owner, None)
        for member, value in vars(owner).items():
            if (member in PROTOCOLS and value is not None) or not member.startswith("_"):
                found[member] = (owner, value)
    return found


def _assigned(owner: type) -> list[str]:
    """The attributes that the constructor of a class sets."""
    constructor = vars(owner).get("__init__")
    try:
        # Its own code: a constructor may show the arguments of another one.
        code = getattr(constructor, "__code__", constructor)
        tree = ast.parse(textwrap.dedent(inspect.getsource(code))) if code is not None else ast.Module([])
    except (OSError, TypeError):  # generated, so there is no source
        return []
    return [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ]


def _lines_of_member(name: str, value: object, owner: type, reached: list[type]) -> list[str]:
    match value:
        case property():
            setter = "property with a setter" if value.fset is not None else "property"
            returns = getattr(value.fget, "__annotations__", {}).get("return", "")
            _reach(returns, owner.__module__, reached)
            return [f"{name} {setter} -> {bare(returns)}".rstrip()]
        case classmethod():
            return _lines_of_function(name, value.__func__, "class method", reached, bound=True)
        case staticmethod():
            return _lines_of_function(name, value.__func__, "static method", reached)
        case _ if inspect.isfunction(value):
            return _lines_of_function(name, value, "method", reached, bound=True)
        case type():
            return [f"{name} class"]
        case _:
            annotation = inspect.get_annotations(owner).get(name.rpartition(".")[2])
            if annotation is None:
                return [f"{name} attribute"]
            _reach(annotation, owner.__module__, reached)
            return [f"{name} attribute: {bare(annotation)}"]


def _lines_of_function(
    name: str, function: object, kind: str, reached: list[type], *, bound: bool = False
) -> list[str]:
    assert callable(function)
    inner = inspect.unwrap(function)
    signature = inspect.signature(inner)
    if inspect.iscoroutinefunction(inner):
        kind = f"async {kind}"
    if inner is not function:
        kind = f"{kind} (decorated)"
    module = str(getattr(inner, "__module__", ""))
    _reach(signature.return_annotation, module, reached)
    returns = "" if signature.return_annotation is inspect.Signature.empty else bare(signature.return_annotation)
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    return [f"{name} {kind} -> {returns}", *_lines_of_parameters(name, parameters, module, reached)]


def _lines_of_parameters(name: str, parameters: list[inspect.Parameter], module: str, reached: list[type]) -> list[str]:
    found: list[str] = []
    for place, parameter in enumerate(parameters, 1):
        where = {PARAMETER_KINDS.KEYWORD_ONLY: "kw", PARAMETER_KINDS.POSITIONAL_ONLY: f"{place}/"}
        stars = {PARAMETER_KINDS.VAR_POSITIONAL: "*", PARAMETER_KINDS.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        line = f"{name}({where.get(parameter.kind, str(place))}) {stars}{parameter.name}"
        if parameter.annotation is not inspect.Parameter.empty:
            line += f": {bare(parameter.annotation)}"
            _reach(parameter.annotation, module, reached)
        if parameter.default is not inspect.Parameter.empty:
            line += f" = {shown(parameter.default)}"
        found.append(line)
    return found


def _reach(annotation: object, module: str, reached: list[type]) -> None:
    """Note the classes of Holdfast that an annotation names; ``module`` is where it is written."""
    for name in sorted(set(re.findall(r"\b[A-Z]\w*", bare(annotation)))):
        kind = _resolved(module, name)
        if _is_ours(kind):
            assert inspect.isclass(kind)
            reached.append(kind)


def _resolved(module: str, name: str) -> object:
    """What a name means in a module, also where only the type checker imports it."""
    found: object = getattr(importlib.import_module(module), name, None)
    home = _imported_for_types(module).get(name)
    return _resolved(*home) if found is None and home is not None else found


@cache
def _imported_for_types(module: str) -> dict[str, tuple[str, str]]:
    """The names that a module imports for the type checker only: where each comes from."""
    if module.partition(".")[0] not in OURS:
        return {}
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(module)))):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for inner in ast.walk(node):
                home = inner.module or "" if isinstance(inner, ast.ImportFrom) else ""
                if isinstance(inner, ast.ImportFrom) and home.partition(".")[0] in OURS:
                    found |= {alias.asname or alias.name: (home, alias.name) for alias in inner.names}
    return found
