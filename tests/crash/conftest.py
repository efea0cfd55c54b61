"""Fixtures of the crash lane."""

from tests.etcd_lane import etcd, etcd_three
from tests.s3_lane import gateway, s3_bucket, s3_url

__all__ = ["etcd", "etcd_three", "gateway", "s3_bucket", "s3_url"]
