"""The real S3 server of the tests: one gateway for the whole session, one bucket for each test.

Import the fixtures into a folder's ``conftest.py``. The gateway is shared by all folders: it is started by the first
test that asks and stopped at the end of the session. Where the packages are absent the tests are skipped with the
reason, except under ``CI=true`` or ``HOLDFAST_PROVE=1``, where a lane that does not run is a failure.
"""

from __future__ import annotations

import itertools
import os

import pytest
from tests.rgw import PACKAGES, Gateway, missing_programs

_shared: dict[str, Gateway] = {}
_bucket_numbers = itertools.count(1)


def require_gateway() -> None:
    """Skip, or fail where the lane must run, when the gateway is not installed."""
    missing = missing_programs()
    if not missing:
        return
    reason = f"the S3 lane needs {', '.join(missing)}: apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    if os.environ.get("CI", "").lower() in ("1", "true") or os.environ.get("HOLDFAST_PROVE") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    """A running gateway on memstore."""
    require_gateway()
    if "memstore" not in _shared:
        started = Gateway(tmp_path_factory.mktemp("gateway"))
        started.start()
        _shared["memstore"] = started
        request.config.add_cleanup(started.stop)
    return _shared["memstore"]


@pytest.fixture
def s3_bucket(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh bucket of the gateway; the credentials are in the environment."""
    for name, value in gateway.environment().items():
        monkeypatch.setenv(name, value)
    bucket = f"test-{next(_bucket_numbers)}"
    gateway.create_bucket(bucket)
    return bucket


@pytest.fixture
def s3_url(gateway: Gateway, s3_bucket: str) -> str:
    """The URL of a fresh, empty bucket on a real S3 server."""
    return gateway.url(s3_bucket)
