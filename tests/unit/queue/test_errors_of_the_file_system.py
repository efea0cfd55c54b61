"""What the file system refuses to the commands for files, as errors of Holdfast with the file's name."""

from __future__ import annotations

import errno
import os

import pytest

from holdfast.errors import Code, HoldfastError, InvalidRequest, PermissionDenied, Unavailable
from holdfast.queue.files.disk_errors import opening


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EACCES, PermissionDenied, "the file system denies access"),
        (errno.EPERM, PermissionDenied, "the file system denies access"),
        (errno.EROFS, PermissionDenied, "the file system denies access"),
        (errno.EEXIST, InvalidRequest, "there can be no such file"),
        (errno.ENOTDIR, InvalidRequest, "there can be no such file"),
        (errno.EIO, Unavailable, "the file system refused a call"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_an_error_of_the_file_system_names_the_file(
    number: int, kind: type[HoldfastError], message: str, named: bool
) -> None:
    error = OSError(number, os.strerror(number), *(["d/q-0001.page"] if named else []))
    with pytest.raises(kind) as refused, opening("d/q"):
        raise error
    assert refused.value.message == message and refused.value.__cause__ is error
    assert refused.value.fields == {"path": "d/q-0001.page" if named else "d/q", "cause": os.strerror(number)}


def test_a_broken_pipe_and_an_error_of_holdfast_pass() -> None:
    for error in (BrokenPipeError(errno.EPIPE, "pipe"), InvalidRequest("x", code=Code.MALFORMED)):
        with pytest.raises(type(error)) as passed, opening("d/q"):
            raise error
        assert passed.value is error
