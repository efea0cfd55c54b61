"""A real S3 server for tests: one Ceph monitor, one storage daemon and one RADOS Gateway, from Debian's packages.

``Gateway`` configures, starts, stops, kills and restarts the three daemons in one directory, and creates buckets. No
daemon survives the process that started it: each has the parent-death signal set. Linux sends that signal when the
*thread* that forked ends, so start a gateway from the main thread.

``memstore`` keeps objects in memory and loses them when its daemon ends, so a restart of that daemon is refused.
``bluestore`` syncs to a sparse file. All addresses are on 127.0.0.1. Admin sockets are off: their paths would be too
long under a test's directory.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import hmac
import http.client
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, get_args

from holdfast.errors import Code, InvalidRequest, Unavailable

__all__ = ["PACKAGES", "Backing", "Daemon", "Gateway", "free_port", "missing_programs"]

Backing = Literal["memstore", "bluestore"]
Daemon = Literal["mon", "osd", "rgw"]
DAEMONS: Final[tuple[Daemon, ...]] = get_args(Daemon)

PACKAGES: Final = ("radosgw", "ceph-mon", "ceph-osd", "ceph-common")
_PROGRAMS: Final = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "monmaptool", "setpriv")

ACCESS_KEY: Final = "holdfast-test"
SECRET_KEY: Final = "holdfast-test-secret"
REGION: Final = "us-east-1"

_PORTS: Final = range(10_000, 32_000)
_READY_SECONDS_MAX: Final = 60.0
_STOP_SECONDS_MAX: Final = 20.0
_POLL_SECONDS: Final = 0.05
_OUTPUT_TAIL_BYTES: Final = 2000


def missing_programs() -> tuple[str, ...]:
    """The programs this module needs that are not on the path; empty when a gateway can be started."""
    return tuple(program for program in _PROGRAMS if shutil.which(program) is None)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago.

    It is below the ports that Linux gives to connections and to listeners on port 0. The tests that run at the same
    time open many of those, so one of them would take the port of a server that is killed and starts again.
    """
    for _ in range(1_000):
        port = _PORTS[secrets.randbelow(len(_PORTS))]  # a seeded draw would be the same in each group of tests
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(errno.EADDRINUSE, f"none of the ports {_PORTS} is free")


class Gateway:
    """One S3 server with one user, living in ``directory``.

    Used as a context manager it starts on entry and stops on exit. Methods block; call them from the main thread.

    Cost: about 1.5 seconds and 450 MB of memory to start on ``memstore``, 6 seconds on ``bluestore``.
    After a crash: of this process, the daemons die with it. Of the daemons, ``restart`` brings a bluestore gateway back
    with every object whose PUT was answered.
    """

    def __init__(self, directory: Path, *, port: int | None = None, backing: Backing = "memstore") -> None:
        absent = missing_programs()
        if absent:
            raise Unavailable(
                "the Ceph RADOS Gateway is not installed",
                code=Code.STORE_UNAVAILABLE,
                hint=f"apt-get install --no-install-recommends {' '.join(PACKAGES)}",
                missing=",".join(absent),
            )
        self.directory = directory.resolve()
        self.port = port if port is not None else free_port()
        self.backing: Backing = backing
        self._configuration = self.directory / "ceph.conf"
        self._monitor_port = free_port()
        self._cluster_id = str(uuid.uuid4())
        self._processes: dict[Daemon, subprocess.Popen[bytes]] = {}
        self._forgot = False

    @property
    def endpoint(self) -> str:
        """The address of the S3 API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pids(self) -> Mapping[Daemon, int]:
        """The process ids of the daemons that were started and not yet stopped or killed."""
        return {daemon: process.pid for daemon, process in self._processes.items()}

    def environment(self) -> dict[str, str]:
        """The credentials, as the environment variables that S3 clients read."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}

    def url(self, bucket: str, *, prefix: str = "", endpoint: str | None = None) -> str:
        """The ``s3:`` URL of a bucket here, or of the same bucket seen through another ``endpoint`` (a proxy)."""
        path = f"{bucket}/{prefix}" if prefix else bucket
        return f"s3://{path}?region={REGION}&endpoint={endpoint or self.endpoint}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make a fresh cluster in ``directory`` (which must be absent or empty) and wait until it answers S3.

        Raises: InvalidRequest when the directory holds something, Unavailable when a daemon does not come up.
        """
        if self.directory.exists() and any(self.directory.iterdir()):
            raise InvalidRequest("a fresh gateway needs an empty directory", directory=self.directory)
        for part in ("mon", "osd", "run", "rgw"):
            (self.directory / part).mkdir(parents=True)
        self._configuration.write_text(self._settings(), encoding="utf-8")
        try:
            self._make_monitor()
            self._spawn("mon")
            self._make_storage()
            self._spawn("osd")
            self._run("ceph", "osd", "crush", "add", "osd.0", "1.0", "host=localhost", "root=default")
            self._wait_for_storage()
            self._spawn("rgw")
            self._make_user()
            self._wait_for_answer()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop every daemon, the gateway first, and wait until they have gone. Stopping twice is harmless."""
        for daemon in reversed(DAEMONS):
            process = self._processes.pop(daemon, None)
            if process is None:
                continue
            process.terminate()
            self._note_end(daemon)
            try:
                process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self, daemons: Sequence[Daemon] = DAEMONS) -> None:
        """``kill -9`` these daemons at once, and wait until they have gone.

        For some 30 seconds after a gateway was killed, making a bucket may time out: the cluster still waits for the
        dead gateway to hear of it. Objects are not affected.
        """
        killed: list[subprocess.Popen[bytes]] = []
        for daemon in daemons:
            process = self._processes.pop(daemon, None)
            if process is not None:
                process.send_signal(signal.SIGKILL)
                killed.append(process)
                self._note_end(daemon)
        for process in killed:
            process.wait()

    def restart(self) -> None:
        """Start the daemons that are not running, on the data that is there, and wait until S3 answers.

        Raises: InvalidRequest when a ``memstore`` daemon has ended and so forgotten the objects, Unavailable.
        """
        if self._forgot:
            raise InvalidRequest("memstore forgets its objects when its daemon ends", hint="use backing='bluestore'")
        if "mon" not in self._processes:
            self._spawn("mon")
        if "osd" not in self._processes:
            # The monitor still believes in the killed daemon. A gateway that asks under that belief waits a quarter of
            # a minute for a daemon that has gone, so the belief is corrected before anybody can ask.
            self._run("ceph", "osd", "down", "0")
            self._spawn("osd")
            self._wait_for_storage()
        if "rgw" not in self._processes:
            self._spawn("rgw")
        self._wait_for_answer()

    def create_bucket(self, name: str) -> None:
        """Make a bucket. Making it again is harmless. Raises: Unavailable."""
        self._signed("PUT", f"/{name}")

    def _note_end(self, daemon: Daemon) -> None:
        self._forgot = self._forgot or (daemon == "osd" and self.backing == "memstore")

    # --- making the cluster -------------------------------------------------------------------------------------

    def _settings(self) -> str:
        """The configuration file. Settings that are not obvious have their reasons next to them."""
        here = self.directory
        return f"""
[global]
fsid = {self._cluster_id}
mon_host = [v2:127.0.0.1:{self._monitor_port}]
mon_initial_members = a
public_network = 127.0.0.0/8
ms_bind_ipv6 = false
# one user on one machine: no keys between the daemons (needs mode crc, the default wants keys)
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_mon_client_mode = crc
# one copy on one disk
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_max_pg_per_osd = 10000
# the gateway makes its pools one after another: short rounds turn a quarter of a minute into a second
paxos_propose_interval = 0.02
paxos_min_wait = 0.01
# a nearly full disk of a test machine does not matter here
mon_data_avail_crit = 1
mon_data_avail_warn = 1
mon_osd_full_ratio = 0.99
mon_osd_backfillfull_ratio = 0.99
mon_osd_nearfull_ratio = 0.99
debug_rgw = 0/0
debug_mon = 0/0
debug_osd = 0/0
debug_bluestore = 0/0
debug_rocksdb = 0/0
debug_ms = 0/0
debug_objecter = 0/0
debug_objclass = 0/0
debug_memstore = 0/0
debug_optracker = 0/0
debug_throttle = 0/0
# what each request waited for is asked by nobody, and costs a sixth of the daemon's time
osd_enable_op_tracker = false
throttler_perf_counter = false
mon_data = {here}/mon
osd_data = {here}/osd
osd_objectstore = {self.backing}
osd_memory_target = 1073741824
memstore_device_bytes = 4294967296
bluestore_block_size = 8589934592
bluestore_block_create = true
osd_crush_update_on_start = false
osd_class_load_list = *
osd_class_default_list = *
run_dir = {here}/run
admin_socket =
log_file = {here}/run/$name.log
log_to_stderr = false
rgw_data = {here}/rgw
rgw_run_sync_thread = false
rgw_enable_ops_log = false
rgw_enable_usage_log = false
[client.rgw]
# without tcp_nodelay every GET waits 40 ms for a delayed acknowledgement
rgw_frontends = beast endpoint=127.0.0.1:{self.port} tcp_nodelay=1
"""

    def _make_monitor(self) -> None:
        monitor_map = str(self.directory / "monmap")
        address = f"[v2:127.0.0.1:{self._monitor_port}]"
        self._run("monmaptool", "--create", "--fsid", self._cluster_id, "--addv", "a", address, monitor_map)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monitor_map)

    def _make_storage(self) -> None:
        storage_id = str(uuid.uuid4())
        self._run("ceph", "osd", "new", storage_id)
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", storage_id)

    def _make_user(self) -> None:
        self._run(
            *("radosgw-admin", "user", "create", "--uid=holdfast", "--display-name=holdfast"),
            *(f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}"),
        )

    def _wait_for_storage(self) -> None:
        """Until the monitor counts the storage daemon as up."""
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while b" 1 up" not in self._run("ceph", "osd", "stat"):
            self._check_alive()
            if time.monotonic() > deadline:
                raise Unavailable("storage daemon did not come up", output=self._tail("osd"))
            time.sleep(_POLL_SECONDS)

    def _check_alive(self) -> None:
        for daemon, process in self._processes.items():
            if process.poll() is not None:
                raise Unavailable("daemon ended at start", daemon=daemon, output=self._tail(daemon))

    def _run(self, *command: str) -> bytes:
        """The output of one administrator's command. It waits for the monitor by itself, up to the bound."""
        try:
            done = subprocess.run(
                [command[0], "--conf", str(self._configuration), *command[1:]]
                if command[0] != "monmaptool"
                else list(command),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_READY_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable("command of the gateway did not end", command=" ".join(command)) from error
        if done.returncode != 0:
            said = done.stderr[-_OUTPUT_TAIL_BYTES:].decode("utf-8", "replace").strip()
            raise Unavailable("command of the gateway failed", command=" ".join(command), said=said)
        return done.stdout

    def _spawn(self, daemon: Daemon) -> None:
        conf = str(self._configuration)
        command: dict[Daemon, list[str]] = {
            "mon": ["ceph-mon", "--conf", conf, "-f", "-i", "a"],
            "osd": ["ceph-osd", "--conf", conf, "-f", "-i", "0"],
            "rgw": ["radosgw", "--conf", conf, "-f", "-n", "client.rgw"],
        }
        with (self.directory / "run" / f"{daemon}.out").open("ab") as output:
            self._processes[daemon] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command[daemon]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                close_fds=True,
                start_new_session=True,
                cwd=self.directory,
            )

    # --- speaking S3 --------------------------------------------------------------------------------------------

    def _wait_for_answer(self) -> None:
        """Until a signed listing of the buckets is answered: that goes through all three daemons."""
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while True:
            self._check_alive()
            try:
                self._signed("GET", "/")
                return
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)

    def _tail(self, daemon: Daemon) -> str:
        output = (self.directory / "run" / f"{daemon}.out").read_bytes()
        return output[-_OUTPUT_TAIL_BYTES:].decode("utf-8", "replace").strip()

    def _signed(self, method: str, path: str) -> None:
        """One request without a body, signed with Signature Version 4.

        Source: AWS, "Create a signed AWS API request", the steps in their order.
        """
        now = datetime.now(UTC)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        payload = hashlib.sha256(b"").hexdigest()
        headers = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": payload, "x-amz-date": stamp}
        names = ";".join(headers)
        canonical = "\n".join(
            [method, path, "", *(f"{name}:{value}" for name, value in headers.items()), "", names, payload]
        )
        scope = f"{day}/{REGION}/s3/aws4_request"
        to_sign = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{SECRET_KEY}".encode()
        for part in (day, REGION, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope},SignedHeaders={names},Signature={signature}"
        )
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            said = response.read(_OUTPUT_TAIL_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable("gateway does not answer", endpoint=self.endpoint) from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise Unavailable("gateway refused", method=method, path=path, status=response.status, said=said)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a gateway in the foreground until a signal: ``python -m tests.rgw DIR --port P``."""
    parser = argparse.ArgumentParser(prog="python -m tests.rgw", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, help="absent or empty; everything lives below it")
    parser.add_argument("--port", type=int, default=None, help="of the S3 API on 127.0.0.1 (default: a free one)")
    parser.add_argument("--backing", choices=get_args(Backing), default="memstore")
    parser.add_argument("--bucket", action="append", default=[], help="make this bucket; may be given again")
    chosen = parser.parse_args(arguments)
    # Not blocked with a signal mask: the daemons would inherit it and never hear their own SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        gateway = Gateway(chosen.directory, port=chosen.port, backing=chosen.backing)
        gateway.start()
    except (InvalidRequest, Unavailable) as error:
        print(error, file=sys.stderr)
        return 1
    try:
        for bucket in chosen.bucket:
            gateway.create_bucket(bucket)
        for name, value in gateway.environment().items():
            print(f"export {name}={value}")
        print(f"# ready at {gateway.endpoint}, pid {os.getpid()}, Ctrl-C stops", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        return 0
    finally:
        gateway.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
