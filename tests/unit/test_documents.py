"""Files that people write: the same values from TOML, YAML and JSON, and what is wrong is named with its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from holdfast.cli.stores import read_definition
from holdfast.errors import Code, InvalidRequest
from holdfast.files.documents import DEPTH_MAX, Bounds, read_document
from holdfast.server.stores.opening import read_definitions
from holdfast.settings import load_configuration

ROOT = Path(__file__).parents[2]

SETTINGS = {
    "toml": """# a service
[log]
url = "memory:"

[server]
listen = ["127.0.0.1:1"]
%s = 5
""",
    "yaml": """# a service
log:
  url: "memory:"

server:
  listen: ["127.0.0.1:1"]
  %s: 5
""",
    "json": """

{"log": {
  "url": "memory:"},

 "server": {"listen": ["127.0.0.1:1"],
  "%s": 5}}
""",
}
DEFINITIONS = {
    "toml": """
[stores.orders]
bytelimit = "1g"
[stores.orders.durables.work]
type = "shared"
%s = 5
""",
    "yaml": """
stores:
  orders: {bytelimit: 1g, durables:
    {work:
      {type: shared,
       %s: 5}}}
""",
    "json": """

{"stores": {"orders": {
  "bytelimit": "1g", "durables": {"work":
    {"type": "shared",
     "%s": 5}}}}}
""",
}
ENDINGS = [*SETTINGS, "yml"]


def written(path: Path, ending: str, texts: dict[str, str], name: str) -> Path:
    file = path / f"file.{ending}"
    file.write_text(texts["yaml" if ending == "yml" else ending] % name)
    return file


@pytest.mark.parametrize("ending", ENDINGS)
def test_settings_are_the_same_in_each_format(tmp_path: Path, ending: str) -> None:
    file = written(tmp_path, ending, SETTINGS, "max_connections")
    settings = load_configuration(environ={}, file=file, working_directory=tmp_path).settings
    assert (settings.log.url, settings.server.max_connections) == ("memory:", 5)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("name", "problem"), [("max_conections", "there is no key"), ("max_request_size_bytes", "")])
def test_a_setting_that_is_wrong_is_named_with_its_line(tmp_path: Path, ending: str, name: str, problem: str) -> None:
    file = written(tmp_path, ending, SETTINGS, name)
    file.write_text(file.read_text().replace("5", "-5"))
    with pytest.raises(InvalidRequest, match=rf"file.{ending} line 7.*{problem}|from .*file.{ending} line 7"):
        load_configuration(environ={}, file=file, working_directory=tmp_path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_definitions_are_the_same_in_each_format(tmp_path: Path, ending: str) -> None:
    file = written(tmp_path, ending, DEFINITIONS, "max_delivery")
    found = read_definitions(str(file)).stores["orders"]
    assert (found.bytelimit, found.durables["work"].max_delivery) == (1 << 30, 5)
    assert read_definition(file)["stores"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_definition_that_is_wrong_is_named_with_its_line(tmp_path: Path, ending: str) -> None:
    file = written(tmp_path, ending, DEFINITIONS, "max_delivry")
    for read in (lambda: read_definitions(str(file)), lambda: read_definition(file)):
        with pytest.raises(
            InvalidRequest, match=r"line 6: stores\.orders\.durables\.work\.max_delivry: there is no such"
        ):
            read()
    file = written(tmp_path, ending, {key: text.replace("shared", "shard") for key, text in DEFINITIONS.items()}, "x")
    with pytest.raises(InvalidRequest, match=r"line 5: stores\.orders\.durables\.work\.type: one of"):
        read_definitions(str(file))


def test_a_value_that_is_missing_is_named_with_the_line_around_it(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("stores:\n  s:\n    durables:\n      w: {prefetch: 1}\n")
    with pytest.raises(InvalidRequest, match=r"line 4: stores\.s\.durables\.w\.type: one of"):
        read_definitions(str(file))


@pytest.mark.parametrize(
    ("ending", "text", "problem"),
    [
        ("yaml", "a: 1\nb: 2\na: 3\n", "line 3: 'a' is given twice, first on line 1"),
        ("json", '{"a": 1, "b": {"c": 1, "c": 2}}', "'c' is given twice"),
        ("toml", "a = 1\na = 2\n", "Cannot overwrite a value"),
        ("yaml", "a: [1\n", "line 2"),
        ("yaml", "a: 2026-01-01\n", "line 1: '2026-01-01' is of YAML's type date: put it in quotes"),
        ("yaml", "? [a]\n: 1\n", "line 1: a key is a text"),
        (
            "yaml",
            "a: !!python/object/apply:os.system [id]\n",
            "line 1: there is no type !!?python|line 1: there is no type tag",
        ),
        ("yaml", "a: &a [*a]\n", "levels|recursive"),
        ("yaml", "a: " + "[" * (DEPTH_MAX + 2) + "]" * (DEPTH_MAX + 2), "levels"),
        ("yaml", "--- 1\n--- 2\n", "single document"),
        ("json", "{", "line 1"),
        ("json", "[" * 100_000, "too many levels"),
    ],
)
def test_a_file_that_is_not_of_its_format_is_refused_with_the_place(
    tmp_path: Path, ending: str, text: str, problem: str
) -> None:
    file = tmp_path / f"bad.{ending}"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=problem) as refused:
        read_document(file)
    assert refused.value.code is Code.BAD_CONFIGURATION
    assert file.name in str(refused.value)


def test_aliases_that_grow_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.files.documents.FILE", Bounds(1 << 20, 10_000))
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)]
    file = tmp_path / "bomb.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(InvalidRequest, match="more than 10000 values"):
        read_document(file)


def test_yaml_takes_what_an_anchor_names(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("""
stores:
  s:
    durables:
      a: &usual {type: shared, prefetch: 7, max_delivery: 3}
      b: {<<: *usual, prefetch: 9}
""")
    found = read_definitions(str(file)).stores["s"].durables
    assert (found["a"].prefetch, found["b"].prefetch, found["b"].max_delivery) == (7, 9, 3)


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_a_yaml_file_without_a_value_is_one_without_keys(tmp_path: Path, text: str) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(text)
    assert load_configuration(environ={}, working_directory=tmp_path).file == file
    assert read_definitions(str(file)).stores == {}


def test_of_two_files_in_one_directory_none_is_taken(tmp_path: Path) -> None:
    (tmp_path / "holdfast.yaml").write_text("")
    (tmp_path / "holdfast.toml").write_text("")
    with pytest.raises(InvalidRequest, match=r"holdfast\.toml and holdfast\.yaml"):
        load_configuration(environ={}, working_directory=tmp_path)


def test_the_lines_of_a_file_of_an_ftl_server_are_lines_of_a_definition(tmp_path: Path) -> None:
    """Every row of the table in the reference: its own form gives the value that the other form gives there."""
    text = (ROOT / "docs/reference/stores-compared.md").read_text().partition("## Lines of its YAML file")[2]
    rows = re.findall(
        r"^\| `(default\.cluster\.disk\.(\w+): (\w+))` \| `([^`]+)` \|$", text.partition("\n## ")[0], re.MULTILINE
    )
    assert [row[1] for row in rows] == ["swap", "persistence"]
    for _, name, value, ours in rows:
        file = tmp_path / "definition.yaml"
        file.write_text(ours)
        document = read_definitions(str(file)).document()["cluster"]
        assert isinstance(document, dict)
        assert document[name] == yaml.safe_load(value)


@pytest.mark.parametrize("ending", ["yaml", "json", "toml"])
@pytest.mark.parametrize("opening", ["[", '{"a": ', "[{a: "])
def test_brackets_without_end_are_refused_before_anything_recurses(tmp_path: Path, ending: str, opening: str) -> None:
    file = tmp_path / f"deep.{ending}"
    text = opening * 200_000
    file.write_text({"yaml": f"a: {text}", "json": text, "toml": f"a = {text}"}[ending])
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_document(file)


@pytest.mark.parametrize("block", ["- " * 200_000, "? " * 200_000])
def test_blocks_without_end_are_refused(tmp_path: Path, block: str) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text(block)
    with pytest.raises(InvalidRequest, match=r"line 1: more than .* levels"):
        read_document(file)


def test_a_bomb_of_merge_keys_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "bomb.yaml"
    rows = ["- &a0 {k0: 1, l0: 2}"]
    rows += [f"- &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: 1}}" for n in range(1, 60)]
    file.write_text("\n".join(rows))
    value = read_document(file).value
    assert isinstance(value, list) and len(value[-1]) == 61 and value[-1]["l0"] == 2
    wide = ["- &w {" + ", ".join(f"k{n}: 1" for n in range(2000)) + "}", "- {<<: [" + "*w, " * 1000 + "*w]}"]
    file.write_text("\n".join(wide))
    with pytest.raises(InvalidRequest, match="line 2: more than 1000000 values"):
        read_document(file)


def test_merge_keys_mean_what_they_mean_to_yaml(tmp_path: Path) -> None:
    file = tmp_path / "merged.yaml"
    text = """
a: &a {x: 1, y: 1}
b: &b {<<: *a, y: 2, z: 2}
c: {z: 3, <<: [*a, *b], w: 3}
d: {"<<": 4}
"""
    file.write_text(text)
    found = read_document(file).value
    expected = yaml.safe_load(text)
    assert found == expected == {**expected, "c": {"x": 1, "y": 1, "z": 3, "w": 3}, "d": {"<<": 4}}
    for wrong in ("a: &a {<<: *a}", "a: {<<: 3}", "a: {<<: [3]}"):
        file.write_text(wrong)
        with pytest.raises(InvalidRequest, match="line 1: "):
            read_document(file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: [1, 2", "line [23], column [0-9]+: .*while parsing a flow sequence"),
        ("a: 1\nb: c: d", "line 2, column 5: mapping values are not allowed"),
        ("a: @x", "line 1, column 4: found character .*that cannot start any token"),
        ("a: 1\nb: \x01", "line 2, column 4: .* characters are not allowed"),
        ("a: *none", "line 1, column 4: found undefined alias"),
    ],
)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_yaml_file_that_is_wrong_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str, compiled: bool
) -> None:
    if not compiled:
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    file = tmp_path / "file.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=reason) as raised:
        read_document(file)
    assert str(file) in raised.value.message
    assert "<unicode string>" not in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_without_a_known_ending_is_told_what_decides(tmp_path: Path) -> None:
    file = tmp_path / "stores.conf"
    file.write_text("a: 1")
    with pytest.raises(
        InvalidRequest, match=r"the end of the name decides the format, \.toml, \.yaml, \.yml or \.json"
    ):
        read_document(file)
    file.write_text('{"a": 1}')
    assert read_document(file).value == {"a": 1}
