"""A log that is deleted and created again under the same address is noticed, with real processes."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.server_process import NO_VIEW, POLL_SECONDS, ServerProcess, children
from tests.integration.test_view_process import is_running
from tests.rgw import free_port

from holdfast import Client, Code, InvalidRequest, Write
from holdfast.client import Checkpoint, ClientOptions, Subscription
from holdfast.view import View

HOLDFAST = (sys.executable, "-m", "holdfast.cli.main")
PATIENT = ClientOptions(retry_max_ms=100)


def started(folder: Path, port: int, *flags: str, stores: bool = False, view: bool = True) -> ServerProcess:
    environment = {"HOLDFAST_STORES__ENABLED": str(stores).lower(), "HOLDFAST_STORES__PAGE_SIZE_BYTES": "1 MiB"}
    environment |= {} if view else NO_VIEW
    return ServerProcess(folder, (folder / "log").as_uri(), port, flags=flags, environment=environment)


@contextlib.contextmanager
def serving(folder: Path, port: int, *flags: str, stores: bool = False, view: bool = True) -> Iterator[ServerProcess]:
    server = started(folder, port, *(flags or ("--init",)), stores=stores, view=view)
    try:
        server.wait_until_leading()
        while stores and "event=stores_open" not in server.tail():
            server.leads()  # raises when it has ended
            time.sleep(POLL_SECONDS)
        yield server
    finally:
        family = children(server.pid)
        server.kill()
        # The view's process still writes into the directory for a moment. Whoever removes it must wait.
        while any(is_running(child) for child in family):
            time.sleep(0.01)


def read_until(events: Subscription, version: int) -> None:
    """Until the stream says that it is past a version."""
    for event in events:
        if isinstance(event, Checkpoint) and event.committed_version >= version:
            return


def apply_all(view: View, events: Subscription) -> None:
    for batch in events.batches():
        view.apply(batch)


def test_a_client_that_is_connected_notices(tmp_path: Path) -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", options=PATIENT) as client:
        events = client.subscribe(checkpoints=True)
        with serving(tmp_path, port, view=False):
            before = client.version().log_id
            read_until(events, client.commit([Write(b"k", b"old")]).version)
        shutil.rmtree(tmp_path / "log")
        with serving(tmp_path, port, view=False):
            with pytest.raises(InvalidRequest) as caught:
                next(events)
            assert caught.value.code is Code.LOG_MISMATCH
            assert client.version().log_id == caught.value.fields["log_id"] != before
            # What was read from the log before decides nothing here; a blind write goes on.
            client.commit([Write(b"k", b"new")])


@pytest.mark.matrix
def test_a_client_that_was_stopped_meanwhile_notices(tmp_path: Path) -> None:
    port = free_port()
    view_file = tmp_path / "view"
    with serving(tmp_path, port), Client(f"http://127.0.0.1:{port}", options=PATIENT) as client:
        version = client.commit([Write(b"k", b"old")]).version
        with View.sqlite(view_file) as view, client.subscribe(view.position) as events:
            while view.version < version:
                view.apply(next(events.batches()))
            position = events.position
    shutil.rmtree(tmp_path / "log")
    with serving(tmp_path, port), Client(f"http://127.0.0.1:{port}", options=PATIENT) as client:
        for after in (position, str(position)):
            with client.subscribe(after) as events, pytest.raises(InvalidRequest) as caught:
                next(events)
            assert caught.value.code is Code.LOG_MISMATCH
        with View.sqlite(view_file) as view:
            with client.subscribe(view.position) as events, pytest.raises(InvalidRequest):
                next(events)
            # A number alone is accepted, and then the view itself refuses what comes.
            client.commit([Write(b"k", b"new")])
            with client.subscribe(0) as events, pytest.raises(InvalidRequest) as caught:
                apply_all(view, events)
            assert caught.value.code is Code.LOG_MISMATCH
            assert view.get(b"k") == (b"old", version)


def log_id_of(port: int) -> str:
    with Client(f"http://127.0.0.1:{port}", options=PATIENT) as client:
        log_id = client.version().log_id
    assert log_id is not None
    return log_id


@pytest.mark.matrix
def test_init_refuses_the_view_of_another_log_and_the_new_view_shows_nothing_of_it(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port), Client(f"http://127.0.0.1:{port}", options=PATIENT) as client:
        client.get(b"k", at=client.commit([Write(b"k", b"old")]).version)
        before = log_id_of(port)
    view = tmp_path / "log" / "view" / f"{before}.sqlite"
    assert view.exists()
    shutil.rmtree(tmp_path / "log" / "batches")
    refused = started(tmp_path, port, "--init")
    assert refused.wait() == 2
    assert "log_mismatch" in refused.tail()
    assert f"the view of log {before}" in refused.tail()
    assert "--force-new" in refused.tail()
    assert not list((tmp_path / "log").glob("batches/*")), "nothing was begun"
    with serving(tmp_path, port, "--init", "--force-new"):
        with Client(f"http://127.0.0.1:{port}", options=PATIENT) as client:
            at = client.commit([Write(b"other", b"new")]).version
            assert client.get(b"k", at=at) is None
            with pytest.raises(InvalidRequest) as caught:
                client.get(b"k", at=f"{at}@{before}")
            assert caught.value.code is Code.LOG_MISMATCH
        assert log_id_of(port) != before
    # A file that another log left under this log's name is not believed either.
    after = next(path for path in view.parent.glob("*.sqlite") if path != view)
    for path in view.parent.glob(f"{after.stem}*"):
        path.unlink()
    shutil.copy(view, after)
    with serving(tmp_path, port, "--standby"), Client(f"http://127.0.0.1:{port}", options=PATIENT) as client:
        assert client.get(b"k", at=client.version().version) is None
        assert client.get(b"other") is not None


@pytest.mark.matrix
def test_stores_of_another_log_are_refused_and_kept_on_request(tmp_path: Path) -> None:
    port = free_port()
    binding = tmp_path / "log-stores" / "log.json"
    with serving(tmp_path, port, stores=True):
        before = log_id_of(port)
    assert json.loads(binding.read_text())["log_id"] == before
    shutil.rmtree(tmp_path / "log")
    # A new log cannot begin beside them.
    refused = started(tmp_path, port, "--init", stores=True)
    assert refused.wait() == 2
    assert f"stores of log {before}" in refused.tail()
    # Nor does a log that came there otherwise get them, and its lead is not taken for nothing.
    subprocess.run(
        [*HOLDFAST, "log", "init", "--no-race", "--force-new", (tmp_path / "log").as_uri()], check=True, timeout=60
    )
    refused = started(tmp_path, port, stores=True)
    assert refused.wait() == 2
    assert f"stores_log_id={before} log_id=" in refused.tail()
    assert len(list((tmp_path / "log" / "batches").iterdir())) == 1
    with serving(tmp_path, port, "--init", "--force-new", stores=True):
        after = log_id_of(port)
    assert json.loads(binding.read_text())["log_id"] == after != before
    # Stores from before the note belong to the log that opens them first.
    binding.unlink()
    with serving(tmp_path, port, "--standby", stores=True):
        pass
    assert json.loads(binding.read_text())["log_id"] == after


@pytest.mark.matrix
def test_log_init_refuses_what_another_log_left(tmp_path: Path) -> None:
    (tmp_path / "log" / "view").mkdir(parents=True)
    (tmp_path / "log" / "view" / f"{'1' * 32}.sqlite").touch()
    (tmp_path / "log" / "meta").mkdir()
    (tmp_path / "log" / "meta" / "left").touch()
    command = [*HOLDFAST, "log", "init", "--no-race", (tmp_path / "log").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"the view of log {'1' * 32}" in done.stderr
    assert "the object meta/left" in done.stderr
    assert subprocess.run([*command, "--force-new"], timeout=60, check=False).returncode == 0
    assert subprocess.run(command, timeout=60, check=False).returncode == 0, "harmless on a log that is there"
