"""A directory whose path is no text in UTF-8 is refused wherever it is named, and nothing is made in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.commit.leadership.log_remains import view_directory
from holdfast.errors import Code, InvalidRequest
from holdfast.files.file_urls import path_of
from holdfast.objects.open import open_durable_reader, open_store
from holdfast.segments.table_location import table_location
from holdfast.server.run import require_writable_place
from holdfast.settings import load_configuration
from holdfast.spark.runtime.store_thread import StoreThread

ESCAPED = "file:///tmp/not-text-%FF"
RAW = os.fsdecode(b"file:///tmp/not-text-\xff")
NUL = "file:///tmp/not-text-%00"


@pytest.mark.parametrize("url", ["file:///a%20log", "file:/a log", "file://localhost/a%20log"])
def test_the_path_of_a_url_is_what_it_spells(url: str) -> None:
    assert path_of(url) == Path("/a log")
    assert path_of("file:///%C3%A9") == Path("/é")


@pytest.mark.parametrize("url", [ESCAPED, RAW, NUL], ids=["escaped", "raw", "nul"])
@pytest.mark.parametrize(
    "use",
    [
        path_of,
        view_directory,
        table_location,
        require_writable_place,
        lambda url: open_store(url, create_missing=True),
        open_durable_reader,
        lambda url: StoreThread(url).__enter__(),
    ],
    ids=["path", "view", "table", "serve", "store", "reader", "spark"],
)
def test_a_path_that_is_not_text_is_refused_by_all_that_take_one(url: str, use) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidRequest, match="UTF-8") as refused:
        use(url)
    assert refused.value.code is Code.BAD_CONFIGURATION
    str(refused.value).encode()  # the error itself can be printed
    assert not [name for name in os.listdir(b"/tmp") if name.startswith(b"not-text-")]


@pytest.mark.parametrize("key", ["log.url", "log.segments_url", "stores.directory", "server.tokens_file"])
def test_a_configuration_that_is_not_text_is_refused_by_key(key: str) -> None:
    for value in (ESCAPED, RAW) if "url" in key else (os.fsdecode(b"/tmp/not-text-\xff"),):
        with pytest.raises(InvalidRequest, match=rf"{key}.*UTF-8") as refused:
            load_configuration(flags={key: value}, environ={})
        str(refused.value).encode()


def test_the_default_log_is_refused_in_a_working_directory_whose_path_is_not_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"log\.url.*UTF-8"):
        load_configuration(environ={}, working_directory=tmp_path / os.fsdecode(b"\xff"))


@pytest.mark.parametrize("words", [("serve", "--log"), ("log", "init"), ("check-config", "--set")], ids=" ".join)
def test_a_command_ends_with_the_exit_code_of_bad_input(words: tuple[str, ...], tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/not-text-\xff"
    last = b"file://" + path
    last = b"log.url=" + last if words[-1] == "--set" else last
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", *words, last], capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 2, ended.stderr.decode()
    assert b"UTF-8" in ended.stdout + ended.stderr
    assert b"Traceback" not in ended.stderr
    assert not os.listdir(tmp_path)
