"""Fixtures of the conformance lane."""

from tests.azure_lane import azure_url, azurite
from tests.s3_lane import gateway, s3_bucket, s3_url

__all__ = ["azure_url", "azurite", "gateway", "s3_bucket", "s3_url"]
