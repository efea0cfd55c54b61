"""A gRPC channel to one endpoint of etcd: one call, one request, no repetition; TLS, a token, and when it has ended."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.extras import needs
from holdfast.objects.etcd.address import EtcdCredentials
from holdfast.objects.etcd.failures import CallFailed, Meaning, meaning_of
from holdfast.objects.etcd.wire import (
    AUTHENTICATE,
    RANGE,
    TXN,
    GetKeys,
    Malformed,
    Request,
    decode_token,
    encode_login,
    encode_request,
)

with needs("etcd"):
    import grpc
    import grpc.aio

CALL_SECONDS: Final = 1.0
ANSWER_BYTES_MAX: Final = 8 << 20
DETAIL_LENGTH_MAX: Final = 200
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
        self._logging_in = asyncio.Lock()

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
        self._notice_end()
        if self._credentials.user is not None and self._token is None:
            async with self._logging_in:
                if self._token is None:
                    self._token = await self._log_in(self._credentials.user)
        try:
            return await self._call(RANGE if isinstance(request, GetKeys) else TXN, encode_request(request))
        except CallFailed as failure:
            # A cluster that asks for users since this login denies a call without a token.
            if failure.meaning is Meaning.LOG_IN_AGAIN or (self._token == "" and failure.meaning is Meaning.DENIED):
                self._token = None
                raise CallFailed(Meaning.LOG_IN_AGAIN, failure.detail) from failure
            raise

    def _notice_end(self) -> None:
        # A channel connects again when it is called, and not before: looking before each call misses no end.
        if self._channel is None or self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            self._is_proved = False

    async def _log_in(self, user: str) -> str:
        """A token, empty where the cluster asks for none yet. Raises: CallFailed."""
        try:
            return decode_token(await self._call(AUTHENTICATE, encode_login(user, self._credentials.password)))
        except Malformed as error:
            raise CallFailed(Meaning.NO_ANSWER, f"{self.endpoint}: {error}") from error
        except CallFailed as failure:
            if "authentication is not enabled" in failure.detail:
                return ""
            raise

    async def _call(self, method: str, message: bytes) -> bytes:
        channel = self._connected()
        metadata = (("token", self._token),) if self._token else None
        try:
            answer: bytes = await channel.unary_unary(method)(message, timeout=CALL_SECONDS, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            text = " ".join((error.details() or "").split())[:DETAIL_LENGTH_MAX]
            raise CallFailed(meaning_of(error.code().name, text), f"{self.endpoint}: {text}") from None
        return answer

    def _connected(self) -> grpc.aio.Channel:
        if self._channel is None:
            if self._credentials.authority is None:
                self._channel = grpc.aio.insecure_channel(self.endpoint, options=OPTIONS)
            else:
                secrets = grpc.ssl_channel_credentials(
                    self._credentials.authority, self._credentials.key, self._credentials.certificate
                )
                self._channel = grpc.aio.secure_channel(self.endpoint, secrets, options=OPTIONS)
        return self._channel

    async def close(self) -> None:
        """As ``Connected`` says. Calls in flight are abandoned."""
        if self._channel is not None:
            await self._channel.close(None)
