"""A gRPC channel to one endpoint of etcd: one call, one request, no repetition; TLS, a token, and when it has ended."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.extras import needs
from holdfast.objects.etcd.address import EtcdCredentials
from holdfast.objects.etcd.failures import CallFailed, Meaning, meaning_of
from holdfast.objects.etcd.wire import (
    AUTHENTICATE,
    COMPACT,
    RANGE,
    STATUS,
    TXN,
    Compact,
    GetKeys,
    Malformed,
    Request,
    Status,
    Txn,
    decode_status,
    decode_token,
    encode_login,
    encode_request,
)

with needs("etcd"):
    import grpc
    import grpc.aio

METHODS: Final = {GetKeys: RANGE, Txn: TXN, Compact: COMPACT}
CALL_SECONDS: Final = 1.0
ANSWER_BYTES_MAX: Final = 8 << 20
DETAIL_LENGTH_MAX: Final = 200
CLOSED: Final = "the connection was closed here"
OPTIONS: Final = (
    ("grpc.enable_retries", 0),  # a create that is repeated turns its own success into a refusal
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # this store's connections are its own
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd ends connections that ask more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
)


class EtcdChannel:
    """A ``Connected`` over gRPC. It connects with its first call, on the running loop."""

    def __init__(self, endpoint: str, credentials: EtcdCredentials) -> None:
        self.endpoint = endpoint
        self._is_proved = False
        self._credentials = credentials
        self._channel: grpc.aio.Channel | None = None
        self._token: str | None = None
        self._login: asyncio.Task[str | CallFailed] | None = None
        self._closed = asyncio.Event()

    @property
    def is_proved(self) -> bool:
        """As ``Connected`` says."""
        self._notice_end()
        return self._is_proved

    @is_proved.setter
    def is_proved(self, value: bool) -> None:
        self._is_proved = value

    async def call(self, request: Request) -> bytes:
        """As ``Connected`` says, within ``CALL_SECONDS``, and as much for a login before."""
        return await self._with_token(METHODS[type(request)], encode_request(request))

    async def status(self) -> Status:
        """What the member says of itself; its cluster is not compared. Raises: CallFailed."""
        try:
            return decode_status(await self._with_token(STATUS, b""))
        except Malformed as error:
            raise CallFailed(Meaning.NO_ANSWER, f"{self.endpoint}: {error}") from error

    async def _with_token(self, method: str, message: bytes) -> bytes:
        self._notice_end()
        token = await self._valid_token()
        try:
            return await self._call(method, message, token)
        except CallFailed as failure:
            # A cluster that asks for users since this login denies a call without a token.
            if failure.meaning is Meaning.LOG_IN_AGAIN or (token == "" and failure.meaning is Meaning.DENIED):
                if self._token == token:
                    self._token = None
                raise CallFailed(Meaning.LOG_IN_AGAIN, failure.detail) from failure
            raise

    async def _valid_token(self) -> str | None:
        """The token, after one login for all calls that wait for it; None without a user. Raises: CallFailed."""
        if self._credentials.user is None or self._token is not None:
            return self._token
        if self._login is None:
            self._login = asyncio.create_task(self._log_in(self._credentials.user, self._credentials.password))
            self._login.add_done_callback(self._logged_in)
        result = await asyncio.shield(self._login)
        if isinstance(result, CallFailed):
            raise CallFailed(result.meaning, result.detail)
        return result

    def _logged_in(self, login: asyncio.Task[str | CallFailed]) -> None:
        self._login = None
        if not login.cancelled() and isinstance(result := login.result(), str):
            self._token = result

    def _notice_end(self) -> None:
        # A channel connects again when it is called, and not before: looking before each call misses no end.
        if self._channel is None or self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            self._is_proved = False

    async def _log_in(self, user: str, password: str) -> str | CallFailed:
        """A token, empty where the cluster asks for none yet; or why there is none."""
        try:
            return decode_token(await self._call(AUTHENTICATE, encode_login(user, password), None))
        except Malformed as error:
            return CallFailed(Meaning.NO_ANSWER, f"{self.endpoint}: {error}")
        except CallFailed as failure:
            return "" if "authentication is not enabled" in failure.detail else failure

    async def _call(self, method: str, message: bytes, token: str | None) -> bytes:
        if self._closed.is_set():
            raise CallFailed(Meaning.NO_ANSWER, f"{self.endpoint}: {CLOSED}")
        channel = self._connected()
        metadata = (("token", token),) if token else None
        try:
            answer: bytes = await channel.unary_unary(method)(message, timeout=CALL_SECONDS, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            text = " ".join((error.details() or "").split())[:DETAIL_LENGTH_MAX]
            raise CallFailed(meaning_of(error.code().name, text), f"{self.endpoint}: {text}") from None
        except asyncio.CancelledError:
            # A channel that closes cancels its calls, not the tasks that wait for them.
            task = asyncio.current_task()
            if self._closed.is_set() and task is not None and not task.cancelling():
                raise CallFailed(Meaning.NO_ANSWER, f"{self.endpoint}: {CLOSED}") from None
            raise
        return answer

    def _connected(self) -> grpc.aio.Channel:
        if self._channel is None:
            target = f"dns:///{self.endpoint}"  # without a scheme, the name of a host may be taken for one: unix:2379
            if self._credentials.authority is None:
                self._channel = grpc.aio.insecure_channel(target, options=OPTIONS)
            else:
                secrets = grpc.ssl_channel_credentials(
                    self._credentials.authority, self._credentials.key, self._credentials.certificate
                )
                self._channel = grpc.aio.secure_channel(target, secrets, options=OPTIONS)
        return self._channel

    async def close(self) -> None:
        """As ``Connected`` says. Calls in flight fail."""
        self._closed.set()
        if self._channel is not None:
            await self._channel.close(None)
