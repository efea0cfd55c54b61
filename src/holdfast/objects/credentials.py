"""Whether credentials for a cloud store can be found at all, asked once before the store is used.

Owns: where the S3 client looks for credentials. Does not own: whether they are right (the start-up probe).

Without any, the client asks the metadata service of a virtual machine for its role. Where there is no such service each
request waits for its time-out, and a start would wait for minutes to say what is known at once.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from holdfast.errors import Code, InvalidRequest

__all__ = ["METADATA_SECONDS_MAX", "require_credentials"]

METADATA_SECONDS_MAX: Final = 0.5
"""The metadata service is on the same host: it accepts within milliseconds."""
METADATA_ENDPOINT: Final = "http://169.254.169.254"
ELSEWHERE: Final = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
HINT: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; profiles in ~/.aws are not read"


def require_credentials(url: str, environment: Mapping[str, str]) -> None:
    """Return when credentials for the store of ``url`` may be found. Other stores than S3 are not looked at.

    Raises: InvalidRequest (``bad_configuration``) naming what is missing. Cost: at most one connection attempt to the
    metadata service, of ``METADATA_SECONDS_MAX``.
    """
    if urlsplit(url).scheme.lower() != "s3":
        return
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        return
    if key or secret:
        missing = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
        raise InvalidRequest(
            "half of the S3 credentials is missing", code=Code.BAD_CONFIGURATION, hint=HINT, missing=missing
        )
    unsigned = environment.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes", "on", "y")
    if unsigned or any(environment.get(name) for name in ELSEWHERE) or _has_metadata_service(environment):
        return
    raise InvalidRequest(
        "there are no credentials for S3: none in the environment, and no metadata service of a virtual machine",
        code=Code.BAD_CONFIGURATION,
        hint=HINT,
    )


def _has_metadata_service(environment: Mapping[str, str]) -> bool:
    parts = urlsplit(environment.get("AWS_METADATA_ENDPOINT") or METADATA_ENDPOINT)
    try:
        place = (parts.hostname or "", parts.port or 80)
        socket.create_connection(place, timeout=METADATA_SECONDS_MAX).close()
    except (OSError, ValueError):
        return False
    return True
