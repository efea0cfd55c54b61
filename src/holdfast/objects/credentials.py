"""Whether credentials for S3 can be found, checked once before the store is used.

Without credentials the client asks the metadata service of a virtual machine for its role, and waits long when there is
none. So a start asks first, in the same way: for a token, then for the name of the role. A service that fails (5xx) may
have a role; a refusal, or no response within ``METADATA_SECONDS_MAX``, means no credentials.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from holdfast.errors import Code, InvalidRequest

METADATA_SECONDS_MAX: Final = 0.5
"""For both requests together. The metadata service is on the same host and responds within milliseconds."""
METADATA_ENDPOINT: Final = "http://169.254.169.254"
ELSEWHERE: Final = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
TTL_HEADER: Final = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER: Final = "X-aws-ec2-metadata-token"
ROLE_BYTES_MAX: Final = 1_024
"""The most bytes read from the metadata service."""
SILENT: Final = "no metadata service of a virtual machine answers"
HINT: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; profiles in ~/.aws are not read"


def require_credentials(url: str, environment: Mapping[str, str]) -> None:
    """Return when credentials for the store of ``url`` may be found. Only S3 is checked.

    Raises: InvalidRequest (``bad_configuration``) naming what is missing. Cost: at most two requests to the
    metadata service, within ``METADATA_SECONDS_MAX`` in all.
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
    if _is_on(environment, "AWS_SKIP_SIGNATURE") or any(environment.get(name) for name in ELSEWHERE):
        return
    problem = _metadata_problem(environment)
    if problem is not None:
        raise InvalidRequest(
            f"there are no credentials for S3: none in the environment, and {problem}",
            code=Code.BAD_CONFIGURATION,
            hint=HINT,
        )


def _is_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in ("1", "true", "yes", "on", "y")


def _metadata_problem(environment: Mapping[str, str]) -> str | None:
    """Why the metadata service gives no role, None when it may give one."""
    endpoint = environment.get("AWS_METADATA_ENDPOINT") or METADATA_ENDPOINT
    problems: list[str | None] = []
    # A thread, because a socket's time-out bounds each read and not the whole response.
    asking = threading.Thread(
        target=lambda: problems.append(_ask_metadata(endpoint, _is_on(environment, "AWS_IMDSV1_FALLBACK"))), daemon=True
    )
    asking.start()
    asking.join(METADATA_SECONDS_MAX)
    return problems[0] if problems else SILENT


def _ask_metadata(endpoint: str, without_token: bool) -> str | None:
    """As above. ``without_token``: a refused token is not an error (IMDSv1)."""
    try:
        parts = urlsplit(endpoint)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        if not parts.hostname:
            raise ValueError("no host")
        connection = kind(parts.hostname, parts.port, timeout=METADATA_SECONDS_MAX)
    except (ValueError, http.client.InvalidURL):
        return "AWS_METADATA_ENDPOINT is not a URL"
    path = parts.path.rstrip("/")
    try:
        status, token = _answer(connection, "PUT", f"{path}/latest/api/token", {TTL_HEADER: "60"})
        if status >= 500:
            return None
        if status >= 400 and not (status == 403 and without_token):
            return f"the metadata service of the virtual machine gives no token (HTTP status {status})"
        headers = {TOKEN_HEADER: token} if status < 400 else {}
        status, role = _answer(connection, "GET", f"{path}/latest/meta-data/iam/security-credentials/", headers)
    except (OSError, ValueError, http.client.HTTPException):
        return SILENT
    finally:
        connection.close()
    if status >= 500 or (status < 400 and role):
        return None
    return f"the virtual machine has no role (HTTP status {status} of its metadata service)"


def _answer(
    connection: http.client.HTTPConnection, method: str, path: str, headers: Mapping[str, str]
) -> tuple[int, str]:
    connection.request(method, path, headers=dict(headers))
    response = connection.getresponse()
    body = response.read(ROLE_BYTES_MAX).decode("latin-1").strip()
    response.close()
    return response.status, body
