"""From the sources of configuration to settings that are in force, each with its origin.

Owns: the order of sources (a flag wins over the environment, that over the file, that over the default), finding the
file, unknown keys, and the provenance that ``holdfast check-config`` shows. Does not own: the keys (``model``).

Failure model: everything wrong in all sources is collected into one ``InvalidRequest`` with code ``bad_configuration``.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from holdfast.errors import Code, InvalidRequest
from holdfast.settings import model
from holdfast.settings.documents import YAML_ENDINGS, Document, read_document
from holdfast.settings.model import KEYS, Key, Settings

__all__ = ["CONFIGURATION_FILE", "Configuration", "Origin", "load_configuration"]

CONFIGURATION_FILE: Final = "holdfast.toml"
CONFIGURATION_FILES: Final = (CONFIGURATION_FILE, *(f"holdfast{ending}" for ending in YAML_ENDINGS))
"""What is looked for in the working directory; of several none is taken."""
ENVIRONMENT_PREFIX: Final = "HOLDFAST_"
_CREDENTIALS: Final = re.compile(r"//[^/]*@")
Source = Literal["default", "file", "env", "flag"]


@dataclass(frozen=True, slots=True)
class Origin:
    """One key as it is in force. ``why`` says where the value came from, or which rule chose it."""

    key: str
    value: str
    source: Source
    why: str
    rule: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings in force, with an origin for every key and the warnings about them."""

    settings: Settings
    origins: tuple[Origin, ...]
    warnings: tuple[str, ...]
    file: Path | None


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as a source gave it."""

    value: object
    source: Source
    why: str


def load_configuration(
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    working_directory: Path | None = None,
) -> Configuration:
    """The configuration in force.

    ``flags`` maps key names (``log.url``) to values and wins. Without ``file``, ``HOLDFAST_CONFIG`` names one, and
    ``holdfast.toml`` or ``holdfast.yaml`` in the working directory is read when it is there.
    Raises: InvalidRequest (code ``bad_configuration``) naming every problem.
    """
    environ = os.environ if environ is None else environ
    directory = Path.cwd() if working_directory is None else working_directory
    problems: list[str] = []
    found = _find_file(file, environ, directory)
    given: dict[str, _Given] = {}
    if found is not None:
        given.update(_from_file(found, problems))
    given.update(_from_environment(environ, problems))
    for name, value in (flags or {}).items():
        if _key(name, f"flag {name}", problems) is not None:
            given[name] = _Given(value, "flag", "given on the command line")
    parsed = _parse(given, problems)
    default_url = (directory / "holdfast-data").absolute().as_uri()
    settings, warnings, broken_rules = model.build(parsed, default_url=default_url)
    problems += broken_rules
    if problems:
        raise InvalidRequest(
            "the configuration cannot be used: " + "; ".join(problems),
            code=Code.BAD_CONFIGURATION,
            hint="`holdfast check-config` shows every key, its rule and where its value came from",
        )
    origins = tuple(_origin(key, settings, given.get(key.name)) for key in KEYS)
    return Configuration(settings, origins, warnings, found)


def _find_file(file: Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    """The file to read: the one that was named must exist, the one in the working directory may."""
    named = file if file is not None else Path(environ[name]) if environ.get(name := "HOLDFAST_CONFIG") else None
    if named is None:
        usual = [path for name in CONFIGURATION_FILES if (path := directory / name).is_file()]
        if len(usual) > 1:
            names = " and ".join(path.name for path in usual)
            raise InvalidRequest(f"there are {names} in {directory}: name one", code=Code.BAD_CONFIGURATION)
        return usual[0] if usual else None
    path = named if named.is_absolute() else directory / named
    if not path.is_file():
        raise InvalidRequest(f"there is no configuration file at {path}", code=Code.BAD_CONFIGURATION)
    return path


def _from_file(path: Path, problems: list[str]) -> dict[str, _Given]:
    """The values of a file: one table for each section."""
    document = read_document(path)
    if document.value is None:
        return {}
    if not isinstance(document.value, dict):
        problems.append(f"{path.name}: sections with keys, not {type(document.value).__name__}")
        return {}
    given: dict[str, _Given] = {}
    for section, table in cast("dict[str, object]", document.value).items():
        if not isinstance(table, dict):
            where = f"{path.name}{_line(document, section)}"
            problems.append(f"{where}: {section} stands outside of a section{_nearest(section)}")
            continue
        for name, value in cast("dict[str, object]", table).items():
            line = _line(document, f"{section}.{name}")
            if (key := _key(f"{section}.{name}", f"{path.name}{line}", problems)) is not None:
                given[key.name] = _Given(value, "file", f"{path}{line}")
    return given


def _line(document: Document, name: str) -> str:
    line = document.line_of(name)
    return "" if line is None else f" line {line}"


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, _Given]:
    """The values of ``HOLDFAST_SECTION__KEY``. Names without a section (``HOLDFAST_CONFIG``) belong to programs."""
    sections = {key.name.partition(".")[0] for key in KEYS}
    given: dict[str, _Given] = {}
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        rest = variable.removeprefix(ENVIRONMENT_PREFIX)
        section, double, name = rest.partition("__")
        if not double:
            # One underscore too few would otherwise be ignored without a word.
            section, _, name = rest.partition("_")
            if section.lower() not in sections or not name:
                continue
            dotted = f"{section}.{name}".lower()
            problems.append(f"environment: {variable} needs two underscores behind the section{_nearest(dotted)}")
            continue
        if (key := _key(f"{section}.{name}".lower(), f"environment variable {variable}", problems)) is not None:
            given[key.name] = _Given(environ[variable], "env", variable)
    return given


def _key(name: str, where: str, problems: list[str]) -> Key[object] | None:
    """The key of this name, or None after noting that there is no such key."""
    for key in KEYS:
        if key.name == name:
            return key
    problems.append(f"{where}: there is no key {name}{_nearest(name)}")
    return None


def _nearest(name: str) -> str:
    """A suggestion for a name that is not a key."""
    names = [key.name for key in KEYS]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if not close:
        last = name.rpartition(".")[2]
        tails = difflib.get_close_matches(last, [known.partition(".")[2] for known in names], n=1, cutoff=0.6)
        close = [known for known in names if tails and known.endswith("." + tails[0])]
    return f", did you mean {close[0]}?" if close else ""


def _parse(given: Mapping[str, _Given], problems: list[str]) -> dict[str, object]:
    """The given values with their types; one that does not fit is noted and left out."""
    parsed: dict[str, object] = {}
    for key in KEYS:
        if key.name not in given:
            continue
        item = given[key.name]
        try:
            parsed[key.name] = key.parse(item.value)
        except ValueError as error:
            shown = "" if key.secret else f" is {_CREDENTIALS.sub('//***@', repr(item.value))} and"
            problems.append(f"{key.name}{shown} must be {error} (from {item.why})")
    return parsed


def _origin(key: Key[object], settings: Settings, given: _Given | None) -> Origin:
    section, _, name = key.name.partition(".")
    value = cast(object, getattr(getattr(settings, section), name))
    if given is None:
        why = key.default_rule or "the default"
        return Origin(key.name, _shown(key, value), "default", why, key.rule)
    return Origin(key.name, _shown(key, value), given.source, given.why, key.rule)


def _shown(key: Key[object], value: object) -> str:
    """A value as people write it; secrets are starred out by their own type."""
    if value is None:
        if "unlimited" in key.rule:
            return "unlimited"
        return "off" if "off" in key.rule else "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in cast("tuple[object, ...]", value)) or "none"
    return str(value)
