"""A token file that every user can write gives everybody a token: it is refused, and what is open is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from holdfast.commit.leadership.peer_tls import PeerTls
from holdfast.console.options import read_tokens
from holdfast.errors import Code, InvalidRequest
from holdfast.files.private_files import openness_of
from holdfast.server.http.auth import Authenticator, Role
from holdfast.server.reloading import Reloading, read_token_file, tokens_of, warn_about_open_files
from holdfast.settings import load_configuration

OLD, NEW = "an-old-token-0123456789", "a-new-token-0123456789"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    path = tmp_path / "tokens"
    path.write_text(f"admin:{OLD}\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("read", [read_token_file, read_tokens])
def test_a_token_file_that_every_user_can_write_is_refused_at_a_start(file: Path, read: object) -> None:
    assert callable(read)
    for mode in (0o600, 0o640, 0o660, 0o644):
        file.chmod(mode)
        assert read(file)
    for mode in (0o602, 0o666, 0o777):
        file.chmod(mode)
        with pytest.raises(InvalidRequest, match="can write") as refused:
            read(file)
        assert refused.value.code is Code.BAD_CONFIGURATION
        assert OLD not in str(refused.value)


def test_a_reload_of_such_a_file_keeps_the_old_tokens(file: Path) -> None:
    flags = {"log.url": "memory:", "server.tokens_file": str(file)}
    settings = load_configuration(flags=flags, environ={}, working_directory=file.parent).settings.server
    authenticator = Authenticator(tokens_of(settings))
    reloading = Reloading(settings, authenticator, lambda _: None, PeerTls(), "")
    file.write_text(f"admin:{NEW}\n")
    file.chmod(0o666)
    assert not reloading.reload("test")
    assert authenticator.problem_with(f"Bearer {OLD}".encode(), Role.ADMIN) is None
    assert authenticator.problem_with(f"Bearer {NEW}".encode(), Role.READ) is not None
    file.chmod(0o600)
    assert reloading.reload("test")
    assert authenticator.problem_with(f"Bearer {NEW}".encode(), Role.ADMIN) is None


def test_what_is_open_is_named_and_goes_on(file: Path) -> None:
    flags = {"log.url": "memory:", "server.tokens_file": str(file)}
    settings = load_configuration(flags=flags, environ={}, working_directory=file.parent).settings.server
    for mode, folder, said in (
        (0o600, 0o700, []),
        (0o660, 0o700, ["the group can write"]),
        (0o604, 0o700, ["every user can read"]),
        (0o600, 0o777, ["every user can replace"]),
        (0o600, 0o1777, []),
    ):
        file.chmod(mode)
        file.parent.chmod(folder)
        with structlog.testing.capture_logs() as lines:
            warn_about_open_files(settings)
        assert [line["problem"].partition(str(file))[0].strip() for line in lines] == said
        assert len(openness_of([file])) == len(said)
    assert openness_of([file.parent / "missing"]) == []
