"""Fixtures of the conformance lane."""

from tests.s3_lane import gateway, s3_bucket, s3_url

__all__ = ["gateway", "s3_bucket", "s3_url"]
