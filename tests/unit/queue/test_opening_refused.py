"""What the file system refuses while something is opened, as the errors of Holdfast."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mount_namespace import mount_namespace

from holdfast.errors import Code, HoldfastError, InvalidRequest, NotFound, PermissionDenied, Unavailable
from holdfast.queue import Queue
from holdfast.queue.files.local import LocalFiles

OPERATIONS = ["make_directory", "open_directory", "names", "create", "open", "read", "write", "sync_data", "lock"]


class Failing(LocalFiles):
    """Fails one operation from the beginning."""

    def __init__(self, operation: str, number: int) -> None:
        super().__init__()
        if operation:
            setattr(self, operation, self.fail)
        self._number = number

    __slots__ = ("__dict__", "_number")

    def fail(self, *_: object, **__: object) -> int:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.ENOSPC, Unavailable, Code.DISK_FULL),
        (errno.EDQUOT, Unavailable, Code.DISK_FULL),
        (errno.EROFS, PermissionDenied, Code.PERMISSION_DENIED),
        (errno.EACCES, PermissionDenied, Code.PERMISSION_DENIED),
        (errno.ENAMETOOLONG, InvalidRequest, Code.MALFORMED),
        (errno.EIO, Unavailable, Code.STORE_UNAVAILABLE),
        (errno.EMFILE, Unavailable, Code.STORE_UNAVAILABLE),
    ],
)
def test_whatever_fails_while_a_queue_is_opened_is_an_error_of_holdfast(
    tmp_path: Path, operation: str, number: int, kind: type[HoldfastError], code: Code
) -> None:
    with pytest.raises(kind) as refused:
        Queue(tmp_path / "q", files=Failing(operation, number))
    assert refused.value.code == code
    assert isinstance(refused.value.__cause__, OSError)
    if kind is PermissionDenied:
        assert refused.value.message == "the file system denies access"
        assert refused.value.fields == {"path": str(tmp_path / "q"), "cause": os.strerror(number)}
    Queue(tmp_path / "q").close()  # and nothing is held


@pytest.mark.parametrize("operation", ["create", "open", "allocate", "lock", "write"])
@pytest.mark.parametrize("call", ["consumer", "work_queue"])
def test_whatever_fails_while_a_consumer_is_opened_is_an_error_of_holdfast(
    tmp_path: Path, operation: str, call: str
) -> None:
    files = Failing("", errno.ENOSPC)
    with Queue(tmp_path / "q", files=files, background=False) as queue:
        setattr(files, operation, files.fail)
        with pytest.raises(Unavailable) as refused:
            getattr(queue, call)("one")
        assert refused.value.code == Code.DISK_FULL
        delattr(files, operation)
        getattr(queue, call)("one").close()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
@pytest.mark.parametrize("call", ["consumer", "work_queue"])
def test_a_consumer_whose_name_cannot_be_locked_is_refused_with_its_name(
    tmp_path: Path, number: int, call: str
) -> None:
    files = Failing("", number)
    with Queue(tmp_path / "q", files=files, background=False) as queue:
        files.lock = files.fail
        with pytest.raises(PermissionDenied) as refused:
            getattr(queue, call)("one")
        assert refused.value.message == "a cursor cannot be kept here"
        assert refused.value.fields == {"name": "one", "cause": os.strerror(number)}
        assert isinstance(refused.value.__cause__, OSError)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 221, "\ud800"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_name_that_cannot_be_a_files_is_refused_and_makes_nothing(tmp_path: Path, name: str, read_only: bool) -> None:
    with pytest.raises(InvalidRequest):
        Queue(f"{tmp_path}/{name}", read_only=read_only)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_names_work_and_what_is_longer_is_an_invalid_request(tmp_path: Path) -> None:
    with Queue(tmp_path / ("x" * 220)) as queue:
        queue.append(b"one")
        queue.consumer("c" * 20).close()
        with pytest.raises(InvalidRequest):
            queue.consumer("c" * 100)
    with pytest.raises(InvalidRequest):
        Queue(tmp_path / ("x" * 300) / "q")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest):
        Queue(tmp_path / "file" / "q", read_only=True)
    with pytest.raises(NotFound):
        Queue(tmp_path / "absent" / "q", read_only=True)


MOUNTS = """
import subprocess, sys
from holdfast import Queue
from holdfast.errors import HoldfastError
place = sys.argv[1]
def mount(*words):
    subprocess.run(["mount", *words, place], check=True)
def refused():
    try:
        Queue(place + "/q", page_size=4096)
    except HoldfastError as error:
        print(type(error).__name__, error.code)
mount("-t", "tmpfs", "-o", "size=64k", "tmpfs")
with open(place + "/filler", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
refused()
open(place + "/filler", "wb").close()
Queue(place + "/q", page_size=4096).close()
mount("-o", "remount,ro")
refused()
"""


def test_a_full_and_a_read_only_mount_are_told_as_what_they_are(tmp_path: Path) -> None:
    found = subprocess.run(
        [*mount_namespace(), sys.executable, "-c", MOUNTS, str(tmp_path)],
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    assert found.stdout.splitlines() == ["Unavailable disk_full", "PermissionDenied permission_denied"]
