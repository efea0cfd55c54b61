"""Fixtures of the integration lane."""

import os
from collections.abc import Iterator

import pytest
from tests.azure_lane import azure_url, azurite
from tests.etcd_lane import etcd, etcd_three
from tests.integration.stores_harness import DURABILITY
from tests.s3_lane import gateway, s3_bucket, s3_url

__all__ = ["azure_url", "azurite", "etcd", "etcd_three", "gateway", "s3_bucket", "s3_url"]

# Not skipped but left out: where every lane must run, a skipped test is a failure.
collect_ignore = [] if os.environ.get("HOLDFAST_PROVE") == "1" else ["test_rgw_bluestore.py"]


@pytest.fixture(scope="module", params=["disk", pytest.param("log", marks=pytest.mark.matrix)])
def durability(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the stores of every log live that begins in this module: on the leader's disk, or in the log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DURABILITY, request.param)
        yield request.param
