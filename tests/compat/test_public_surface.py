"""The whole public surface against its record: a change of anything that users can name must be seen and explained.

``surface/*.txt`` are the records, sorted, one fact a line. The module that defines a name is not recorded, because it
may move. ``HOLDFAST_RECORD=1`` writes what is there now; explain such a change where it is committed.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import pytest
import typer
from tests.compat.python_surface import bare, lines_of_module, shown, shown_text
from tests.integration.http_harness import run, serving
from tests.integration.stores_harness import stores_serving

from holdfast import errors, settings
from holdfast.cli.main import application
from holdfast.cli.output import Exit
from holdfast.objects.budget import StoreMetrics
from holdfast.retention.truncator import PolicyExtent
from holdfast.server import openapi
from holdfast.server.commit.log_job_routes import LogJobs
from holdfast.server.gateway import GatewayLimits
from holdfast.server.http.responses import STATUS_OF
from holdfast.server.http.routes import Route
from holdfast.server.metric_catalogue import BY_NAME
from holdfast.server.route_table import route_table
from holdfast.server.view.embedded_view import EmbeddedView
from holdfast.server.view.messages import ViewStart
from holdfast.wire import stores as socket_frames

ROOT = Path(__file__).resolve().parents[2]
SURFACE = Path(__file__).parent / "surface"
RECORD = os.environ.get("HOLDFAST_RECORD") == "1"
MODULES = ("holdfast", "holdfast.aio", "holdfast.queue", "holdfast.testing")
DOCUMENTED = re.compile(r"^\s*from (holdfast[\w.]*|pyspark_holdfast) import ([\w, ]+)$", re.MULTILINE)
VARIABLE = re.compile(r'"(HOLDFAST_[A-Z_]*[A-Z])"|\benviron(?:\.get)?[(\[]"([A-Z_]+)"')
TEXTS = {"description", "examples", "summary", "title"}


def problem(name: str, facts: list[str]) -> str:
    """How the facts differ from the record ``name``, as lines of a diff; nothing where they do not."""
    record = (SURFACE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join(difflib.unified_diff(record, facts, f"recorded {name}", f"{name} now", n=0, lineterm=""))


def compare(name: str, lines: list[str]) -> None:
    """Fail with a diff when the facts are not those of the record, or record them."""
    facts = sorted(set(lines))
    if RECORD:
        (SURFACE / f"{name}.txt").write_text("\n".join(facts) + "\n", encoding="utf-8")
    elif different := problem(name, facts):
        pytest.fail(f"the public surface is not the recorded one:\n{different}", pytrace=False)


@pytest.mark.parametrize("module", MODULES)
def test_the_names_of_a_public_module_are_the_recorded_ones(module: str) -> None:
    compare(module, lines_of_module(importlib.import_module(module)))


def test_the_names_of_the_spark_package_are_the_recorded_ones() -> None:
    pytest.importorskip("pyspark")
    compare("holdfast.spark", lines_of_module(importlib.import_module("holdfast.spark")))


def test_the_imports_that_the_documentation_shows_are_the_recorded_ones() -> None:
    pytest.importorskip("pyspark")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    shown_imports = {
        (module, name.strip())
        for page in pages
        if page.suffix in (".md", ".py", ".ipynb")
        for module, names in DOCUMENTED.findall(page.read_text(encoding="utf-8"))
        for name in names.split(",")
    }
    compare("imports", [f"from {module} import {name}: {found_kind(module, name)}" for module, name in shown_imports])


def found_kind(module: str, name: str) -> str:
    """What an import finds."""
    try:
        value = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return "missing"
    return "class" if inspect.isclass(value) else "function" if inspect.isroutine(value) else type(value).__name__


def test_codes_errors_and_exit_codes_are_the_recorded_ones() -> None:
    lines = [f"code {code.name} = {code.value}, HTTP status {STATUS_OF.get(code)}" for code in errors.Code]
    lines += [f"exit code {member.name} = {member.value}" for member in Exit]
    for name in errors.__all__:
        kind = getattr(errors, name)
        if inspect.isclass(kind) and issubclass(kind, errors.HoldfastError):
            bases = ", ".join(base.__name__ for base in kind.__bases__)
            lines.append(f"error {name}({bases}), code {kind.default_code}")
    compare("errors", lines)


def test_the_commands_are_the_recorded_ones() -> None:
    compare("commands", list(lines_of_command(typer.main.get_command(application()), "holdfast")))


def lines_of_command(command: Any, path: str) -> Iterator[str]:
    """A command and all below it. ``command`` is of a class that typer does not export."""
    yield f"{path}: {'group' if hasattr(command, 'commands') else 'command'}{' hidden' if command.hidden else ''}"
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    for parameter in command.params:
        names = "/".join([*parameter.opts, *parameter.secondary_opts])
        if parameter in arguments:
            names = f"argument {arguments.index(parameter) + 1} {parameter.name}"
        facts = [f"type={type_text(parameter)}", f"default={default_text(parameter.default)}"]
        facts += [f"variable={parameter.envvar}"] if parameter.envvar else []
        facts += [word for word in ("required", "multiple", "hidden", "is_eager") if getattr(parameter, word, False)]
        facts += [f"nargs={parameter.nargs}"] if parameter.nargs != 1 else []
        yield f"{path} {names}: {' '.join(facts)}"
    for name, inner in getattr(command, "commands", {}).items():
        yield from lines_of_command(inner, f"{path} {name}")


def type_text(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if inspect.isclass(kind) and issubclass(kind, enum.Enum):
        return "|".join(str(member.value) for member in kind)
    bounds = [f"{word}={value}" for word in ("min", "max") if (value := getattr(parameter, word, None)) is not None]
    return f"{bare(kind)}{'(' + ', '.join(bounds) + ')' if bounds else ''}"


def default_text(default: object) -> str:
    return str(default.value) if isinstance(default, enum.Enum) else shown(default)


def test_settings_and_variables_are_the_recorded_ones() -> None:
    lines: list[str] = []
    places = {"file:": {}, "memory:": {"log.url": "memory:"}, "s3:": {"log.url": "s3://bucket/log"}}
    chosen = {
        place: settings.load_configuration(flags=flags, environ={}, working_directory=Path("/srv/app")).settings
        for place, flags in places.items()
    }
    for key in settings.KEYS:
        section, _, name = key.name.partition(".")
        (kind,) = (field.type for field in dataclasses.fields(getattr(chosen["file:"], section)) if field.name == name)
        given = {place: getattr(getattr(one, section), name) for place, one in chosen.items()}
        default = f"{given.pop('file:')!r}"
        others = [f"{value!r} on {place}" for place, value in given.items() if repr(value) != default]
        secret = ", secret" if "Token" in bare(kind) else ""
        lines.append(f"setting {key.name}: {bare(kind)} = {'; '.join([default, *others])}{secret}")
        lines.append(f"variable {key.environment_name} sets {key.name}")
    for page in (ROOT / "src").rglob("*.py"):
        for ours, other in VARIABLE.findall(page.read_text(encoding="utf-8")):
            lines.append(f"variable {ours or other}")
    compare("settings", lines)


def test_the_routes_and_the_metrics_are_the_recorded_ones(tmp_path: Path) -> None:
    routes: list[str] = []
    metrics: list[str] = []

    async def scenario() -> None:
        limits = GatewayLimits(client_commits_per_second_max=1)
        async with serving(view=False, limits=limits) as here, stores_serving(tmp_path / "stores") as stores:
            rows = route_table(
                here.front,
                metrics=here.metrics,
                watch=here.watch,
                subscriptions=here.subscriptions,
                view=here.view,
                retention=here.retention,
                jobs=LogJobs(here.front),
                version="test",
                stores=stores.host,
            )
            routes.extend(lines_of_routes(rows))
            here.metrics.store, here.metrics.stores = StoreMetrics(), stores.host
            here.metrics.view = EmbeddedView(True, ViewStart(log_url="memory:"), cast(Any, None))
            here.metrics.scrub = cast(Any, _Scrubbed())
            here.metrics.retention = here.retention
            assert here.retention.truncator is not None
            here.retention.truncator.state.kept["policy"] = PolicyExtent(1, 1.0, 1)
            front = here.front
            front.counters.refused_commits["overloaded"] += 1
            for family in here.metrics.collect():
                name = f"{family.name}_total" if family.type == "counter" else family.name
                metrics.append(f"{name} {family.type} {{{', '.join(family._labelnames)}}} {family.unit}".rstrip())  # type: ignore[attr-defined]

    run(scenario)
    compare("http", routes)
    compare("metrics", metrics)
    emitted = {line.split()[0] for line in metrics}
    described = {each.exposed_name for each in BY_NAME.values()}
    assert emitted ^ described == {"holdfast_followed_version", "holdfast_followed_time_seconds"}, "of readers alone"


class _Scrubbed:
    objects = 0
    bytes = 0
    passes = 0


def lines_of_routes(rows: list[Route]) -> Iterator[str]:
    """The OpenAPI document of these routes, and who may use each."""
    for row in rows:
        yield f"{row.method} {row.name}: role {row.need.role.name.lower()}, right {row.need.right}"
    document = json.loads(openapi.describe(rows, version="test", with_tokens=True))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield from lines_of_operation(f"{method.upper()} {path}", operation)
    for name, schema in document["components"]["schemas"].items():
        fields = schema.pop("properties", {})
        required = set(schema.pop("required", ()))
        yield f"schema {name}: {schema_text(schema)}"
        for field, kind in fields.items():
            yield f"schema {name}.{field}{'' if field in required else '?'}: {schema_text(kind)}"


def lines_of_operation(route: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"{route}: operation {operation['operationId']}"
    for parameter in operation.get("parameters", ()):
        name = f"{parameter['in']} parameter {parameter['name']}{'' if parameter['required'] else '?'}"
        yield f"{route}: {name}: {schema_text(parameter['schema'])}"
    for media_type, content in operation.get("requestBody", {"content": {}})["content"].items():
        yield f"{route}: takes {media_type}: {schema_text(content.get('schema', {}))}"
    for status, response in operation["responses"].items():
        for media_type, content in response["content"].items():
            schema = content.get("schema", {})
            if status == "200":
                yield f"{route}: answers 200 {media_type}: {schema_text(schema)}"
            else:
                body, codes = schema["allOf"]
                for code in codes["properties"]["error"]["properties"]["code"]["enum"]:
                    yield f"{route}: answers {status} {media_type}: {schema_text(body)} {code}"


def schema_text(schema: Any) -> str:
    """A schema in one line, without texts for people; the alternatives of a type in order of their text."""
    if isinstance(schema, list):
        return "[" + ", ".join(sorted(schema_text(one) for one in schema)) + "]"
    if not isinstance(schema, dict):
        return json.dumps(schema)
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    return (
        "{" + ", ".join(f"{key}: {schema_text(one)}" for key, one in sorted(schema.items()) if key not in TEXTS) + "}"
    )


def test_the_frames_of_a_subscription_are_the_recorded_ones() -> None:
    lines: list[str] = []
    kinds = [*get_args(socket_frames.ClientFrame), *get_args(socket_frames.ServerFrame)]
    for kind in kinds:
        tag = kind.__struct_config__.tag
        name = f"part {kind.__name__}" if tag is None else f"frame {tag}"
        lines.append(name)
        notes = get_type_hints(kind, include_extras=True)
        for field, sent in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
            lines.append(f"{name}.{sent}: {shown_text(inspect.formatannotation(notes[field]))}")
            for inner in (notes[field], *get_args(notes[field])):
                if hasattr(inner, "__struct_fields__") and inner not in kinds:
                    kinds.append(inner)
    compare("frames", lines)


def test_the_options_of_spark_are_the_recorded_ones() -> None:
    pytest.importorskip("pyspark")
    from holdfast.spark import options
    from holdfast.spark.columns import COLUMNS, RowShape, spark_schema
    from pyspark_holdfast import DefaultSource

    lines = [f"data source {DefaultSource.name()}: {DefaultSource.__name__}"]
    for name, option in options.LOG_OPTIONS.items():
        shapes, modes = ", ".join(sorted(option.shapes)), ", ".join(sorted(option.modes))
        lines.append(f"option of a log {name}: shapes {shapes}; modes {modes}")
    lines += [f"option of a queue {name}" for name in options.QUEUE_OPTIONS]
    lines += [f"option of a store {name}" for name in options.STORE_OPTIONS]
    lines += [f"option of a store of a service {name}" for name in options.SERVED_STORE_OPTIONS]
    lines += [f"option of a table {name}" for name in options.TABLE_OPTIONS]
    for name, option in options.WRITE_OPTIONS.items():
        lines += [f"option of a {mode} write {name}" for mode in option.modes]
    for name, option in options.STORE_WRITE_OPTIONS.items():
        lines += [f"option of a {mode} write into a store {name}" for mode in option.modes]
    sink = {"url": "http://127.0.0.1:8080", "application": "app"}
    served = {"url": "http://127.0.0.1:8080", "store": "orders", "durable": "lake"}
    defaults: list[tuple[str, Any]] = [
        ("a queue", options.parse_message_options({"queue": "/queue"})),
        ("a store", options.parse_store_options({"stores": "/stores", "store": "orders"})),
        ("a store of a service", options.parse_served_store_options(served)),
        ("a batch write", options.parse_write_options(sink, options.Mode.BATCH)),
        ("a batch write into a store", options.parse_write_options({**sink, "store": "orders"}, options.Mode.BATCH)),
    ]
    for shape in RowShape:
        parsed = options.parse_read_options({"url": "file:///log", "shape": shape.value})
        defaults.append((f"a log, shape {shape.value}", parsed))
        for field in spark_schema(COLUMNS[shape], parsed.columns).fields:
            lines.append(f"column of a log, shape {shape.value}, {field.name}: {field.dataType.simpleString()}")
    for what, parsed in defaults:
        for field in dataclasses.fields(parsed):
            lines.append(f"default of {what}, {field.name} = {shown(getattr(parsed, field.name))}")
    compare("spark_options", lines)


def test_every_record_belongs_to_a_test() -> None:
    known = {*MODULES, "holdfast.spark", "imports", "errors", "commands", "settings", "http", "metrics", "frames"}
    assert {path.stem for path in SURFACE.glob("*.txt")} == known | {"spark_options"}


@pytest.mark.parametrize("record", sorted(SURFACE.glob("*.txt")), ids=lambda path: path.stem)
def test_a_fact_that_is_gone_and_one_that_is_new_are_the_whole_difference(record: Path) -> None:
    facts = record.read_text(encoding="utf-8").splitlines()
    assert facts == sorted(set(facts))
    assert not problem(record.stem, facts)
    assert _changes(problem(record.stem, facts[1:])) == [f"-{facts[0]}"]
    assert _changes(problem(record.stem, [*facts, "~ a new fact"])) == ["+~ a new fact"]


def _changes(different: str) -> list[str]:
    return [line for line in different.splitlines()[2:] if not line.startswith("@@")]
