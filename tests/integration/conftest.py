"""Fixtures of the integration lane."""

import os

from tests.s3_lane import gateway, s3_bucket, s3_url

__all__ = ["gateway", "s3_bucket", "s3_url"]

# Not skipped but left out: where every lane must run, a skipped test is a failure.
collect_ignore = [] if os.environ.get("HOLDFAST_PROVE") == "1" else ["test_rgw_bluestore.py"]
