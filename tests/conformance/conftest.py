"""Fixtures of the conformance lane."""

from tests.azure_lane import azure_url, azurite
from tests.etcd_lane import etcd, etcd_url
from tests.s3_lane import gateway, s3_bucket, s3_url

__all__ = ["azure_url", "azurite", "etcd", "etcd_url", "gateway", "s3_bucket", "s3_url"]
