"""Rights through the client: what is refused is refused at once and by name, whatever the retry duration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.rgw import free_port

from holdfast.aio import StoreClient as AsyncStoreClient
from holdfast.client.stores import StoreClient
from holdfast.errors import Code, PermissionDenied

pytestmark = pytest.mark.usefixtures("durability")

ADMIN, SENDER, READER = "admin-token-0123456789", "sender-token-0123456789", "reader-token-0123456789"
SECONDS_MAX = 60.0
"""Far below any retry, and far above what one request takes."""


@pytest.fixture(scope="module")
def url(durability: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("service")
    process = ServerProcess(folder, (folder / "log").as_uri(), free_port(), flags=["--init"], environment=NO_VIEW)
    process.wait_until_leading()
    url = f"http://127.0.0.1:{process.port}"
    with StoreClient(url) as client:
        client.define(
            {
                "stores": {"orders": {"durables": {"work": {"type": "shared"}}}, "other": {}},
                "permissions": {
                    "enabled": True,
                    "users": {
                        "admin": {"token": ADMIN, "roles": ["admins"]},
                        "sender": {"token": SENDER, "roles": ["senders"]},
                        "reader": {"token": READER, "roles": ["readers"]},
                    },
                    "roles": {
                        "admins": {
                            "stores": {"*": ["publish", "subscribe", "browse", "administer"]},
                            "cluster": ["browse", "administer"],
                        },
                        "senders": {"stores": {"orders": ["publish"]}},
                        "readers": {"stores": {"orders": ["subscribe", "browse"]}},
                    },
                },
            }
        )
    yield url
    process.kill()


def test_who_may_publish_publishes_and_who_may_subscribe_subscribes(url: str) -> None:
    with StoreClient(url, token=SENDER) as client, client.publisher("orders") as publisher:
        publisher.publish(b"a")
    with StoreClient(url, token=READER) as client:
        assert [message.body for message in client.browser("orders", "work")] == [b"a"]
        with client.subscriber("orders", "work") as subscriber:
            message = subscriber.receive(10)
            assert message is not None and message.body == b"a"


@pytest.mark.parametrize("token", [READER, None, "nobody-token-0123456789"])
def test_who_may_not_publish_is_told_at_once(url: str, token: str | None) -> None:
    """A publisher tries again for ever by itself, so one that tried this again would never return."""
    with (
        StoreClient(url, token=token) as client,
        client.publisher("orders") as publisher,
        pytest.raises(PermissionDenied),
    ):
        publisher.publish(b"x")


@pytest.mark.parametrize("token", [SENDER, None])
def test_who_may_not_subscribe_is_told_at_once(url: str, token: str | None) -> None:
    with StoreClient(url, token=token) as client:
        with pytest.raises(PermissionDenied), client.subscriber("orders", "work"):
            raise AssertionError("entering waits for the answer")
        with pytest.raises(PermissionDenied):
            list(client.browser("orders", "work"))
        with pytest.raises(PermissionDenied):
            client.define_store("mine")


def test_a_right_on_one_store_is_none_on_another(url: str) -> None:
    with (
        StoreClient(url, token=SENDER) as client,
        client.publisher("other") as publisher,
        pytest.raises(PermissionDenied) as denied,
    ):
        publisher.publish(b"x")
    assert denied.value.code is Code.PERMISSION_DENIED


def test_the_asyncio_twin_is_told_at_once_too(url: str) -> None:
    async def work() -> None:
        async with AsyncStoreClient(url, token=SENDER) as client:
            with pytest.raises(PermissionDenied):
                async with client.subscriber("orders", "work"):
                    raise AssertionError("entering waits for the answer")
            async with client.publisher("orders") as publisher:
                await publisher.publish(b"b")

    asyncio.run(asyncio.wait_for(work(), 60))


def test_an_administrator_may_do_everything(url: str) -> None:
    with StoreClient(url, token=ADMIN) as client:
        client.define_store("mine")
        assert client.purge("orders", "work").messages >= 0
        client.cluster()
        client.delete_store("mine")
