"""What the file system refuses to the commands for files, as errors of Holdfast with the file's name."""

from __future__ import annotations

import errno
import os

import pytest

from holdfast.errors import Code, HoldfastError, InvalidRequest, PermissionDenied, Unavailable
from holdfast.queue.repair.files import system_errors


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EACCES, PermissionDenied, "the file system denies access"),
        (errno.EPERM, PermissionDenied, "the file system denies access"),
        (errno.EROFS, PermissionDenied, "the file system is read-only"),
        (errno.EEXIST, InvalidRequest, "a file is where a directory must be"),
        (errno.ENOTDIR, InvalidRequest, "a file is where a directory must be"),
        (errno.EIO, Unavailable, "the file system failed"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_an_error_of_the_file_system_names_the_file(
    number: int, kind: type[HoldfastError], message: str, named: bool
) -> None:
    error = OSError(number, os.strerror(number), *(["d/q-0001.page"] if named else []))
    with pytest.raises(kind) as refused, system_errors("d/q"):
        raise error
    assert refused.value.message == message and refused.value.__cause__ is error
    fields = {"path": "d/q-0001.page" if named and number != errno.EROFS else "d/q", "cause": os.strerror(number)}
    assert refused.value.fields == ({"path": fields["path"]} if kind is InvalidRequest else fields)


def test_a_broken_pipe_and_an_error_of_holdfast_pass() -> None:
    for error in (BrokenPipeError(errno.EPIPE, "pipe"), InvalidRequest("x", code=Code.MALFORMED)):
        with pytest.raises(type(error)) as passed, system_errors("d/q"):
            raise error
        assert passed.value is error
