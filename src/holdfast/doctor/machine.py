"""The machine: its limits, its file systems, its clock's neighbourhood, and files that hold secrets."""

from __future__ import annotations

import os
import resource
import shutil
import ssl
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast.commit.leadership.peer_tls import UNVERIFIED_FIX, PeerTls
from holdfast.commit.leadership.takeover import on_interface
from holdfast.doctor.finding import Finding, Level
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.files.file_urls import path_of
from holdfast.files.temporary_files import temporary_directory, temporary_work
from holdfast.objects.directory.identity import file_system_of
from holdfast.settings import ServerSettings, Settings

FILES_MIN: Final = 4_096
FREE_MIN: Final = 0.1
FREE_BYTES_MIN: Final = 1 << 30
NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "fuse.s3fs", "9p", "ceph", "glusterfs"}
)
VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
CERTIFICATE: Final = "TLS certificate"
PEERS: Final = "TLS between services"


def check_machine(settings: Settings, config: Path | None) -> Iterator[Finding]:
    """Look at this machine. ``config`` is the file that the settings were read from, if any."""
    yield _open_files()
    yield _python()
    if settings.log.scheme == "file":
        yield from _place("log.url", path_of(settings.log.url))
    if settings.stores.hosted is not None and settings.log.scheme != "memory":
        yield from _place("stores.directory", Path(settings.stores.hosted))
    if settings.log.scheme != "memory":
        yield from _temporary()
    if settings.server.tls_certificate is not None:
        yield from _certificate(settings.server)
    if config is not None and settings.server.tokens:
        yield _secrets(config)


def _open_files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        return Finding(
            Level.WARNING,
            "open files",
            f"this process may open {hard} files: connections above about that number are refused",
            "raise the limit: LimitNOFILE=65536 in the unit, or `ulimit -Hn 65536`",
        )
    return Finding(Level.OK, "open files", "unlimited" if hard == resource.RLIM_INFINITY else f"{hard} allowed")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(Level.OK, "Python", f"{version}, {sys.implementation.name}")


def _place(name: str, path: Path) -> Iterator[Finding]:
    existing = path
    while not os.path.lexists(existing):
        existing = existing.parent
    yield _file_system(name, existing)
    yield _writable(name, existing, path)
    yield _free(name, existing)


def _file_system(name: str, path: Path) -> Finding:
    kind, mount = file_system_of(path)
    check = f"file system of {name}"
    if kind in VOLATILE:
        return Finding(
            Level.ERROR, check, f"{mount} is {kind}, in memory: a restart of the machine loses everything",
            "use a directory on a disk",
        )  # fmt: skip
    if kind in NETWORK:
        return Finding(
            Level.WARNING, check, f"{mount} is {kind}, a network file system: fsync and locks may not hold there",
            "use a local disk, or an object store",
        )  # fmt: skip
    return Finding(Level.OK, check, f"{kind or 'unknown'} at {mount}")


def _writable(name: str, existing: Path, path: Path) -> Finding:
    check = f"rights on {name}"
    if not existing.is_dir():
        return Finding(Level.ERROR, check, f"{existing} is not a directory", f"give {name} the name of a directory")
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        fix = f"chown the directory to the user of the service, or run `holdfast doctor` as that user: it needs {path}"
        return Finding(Level.ERROR, check, f"user {os.geteuid()} may not read, write and enter {existing}", fix)
    return Finding(Level.OK, check, f"{existing} can be written")


def _free(name: str, path: Path) -> Finding:
    usage = shutil.disk_usage(path)
    room = f"{usage.free / 1e9:.1f} GB of {usage.total / 1e9:.1f} GB are free"
    if usage.free < max(FREE_MIN * usage.total, FREE_BYTES_MIN) and usage.free < 50 << 30:
        fix = "free space or take a larger disk; `holdfast retention` limits the log"
        return Finding(Level.WARNING, f"disk of {name}", room, fix)
    return Finding(Level.OK, f"disk of {name}", room)


def _temporary() -> Iterator[Finding]:
    """Snapshots, and so retention, and views that are not next to their log need a temporary directory."""
    try:
        with temporary_directory("holdfast-doctor-") as directory, temporary_work():
            Path(directory, "file").write_bytes(b"x")
    except HoldfastError as error:
        yield Finding(Level.ERROR, "temporary files", error.statement(), error.hint)
        return
    yield Finding(Level.OK, "temporary files", f"{tempfile.gettempdir()} can be written")


def _certificate(server: ServerSettings) -> Iterator[Finding]:
    certificate = server.tls_certificate
    assert certificate is not None, "only a certificate is looked at"
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        own.load_cert_chain(certificate, server.tls_key)
    except (OSError, ssl.SSLError) as error:
        fix = "give server.tls_certificate and server.tls_key files that belong together and that this user may read"
        yield Finding(Level.ERROR, CERTIFICATE, f"{certificate} cannot be used: {error}", fix)
        return
    yield Finding(Level.OK, CERTIFICATE, f"{certificate} fits its key")
    yield _peers(own, server)


def _peers(own: ssl.SSLContext, server: ServerSettings) -> Finding:
    """Whether the other processes of the log verify this one by its certificate."""
    advertised = on_interface(server.advertised_address)
    try:
        problem = PeerTls(server.tls_certificate, server.peer_ca_file, server.peer_name).problem_of(own, advertised)
    except InvalidRequest as error:
        return Finding(Level.ERROR, PEERS, error.statement(), "correct server.peer_ca_file")
    if problem is not None:
        return Finding(
            Level.WARNING, PEERS, f"others cannot verify this service at {advertised}: {problem}", UNVERIFIED_FIX
        )
    return Finding(Level.OK, PEERS, f"others verify this service at {advertised}")


def _secrets(config: Path) -> Finding:
    mode = stat.S_IMODE(os.stat(config).st_mode)
    if mode & 0o077:
        return Finding(
            Level.WARNING, "secrets", f"{config} has tokens and mode {mode:04o}: other users may read it",
            f"chmod 600 {config}, or move the tokens to the environment of the service",
        )  # fmt: skip
    return Finding(Level.OK, "secrets", f"{config} can be read by its owner alone")
