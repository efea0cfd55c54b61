"""Rights on stores: from the ``Authorization`` header to yes or a named refusal. Pure.

Without permissions in the definition the roles of ``server.tokens`` count: ``read`` may browse, ``write`` may publish
and subscribe, ``admin`` may do everything; without tokens every caller may. With permissions, one of the user's roles
must grant each right; the role ``admin`` of ``server.tokens`` keeps all rights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from holdfast.errors import Code, HoldfastError, PermissionDenied
from holdfast.server.http.auth import TOKEN_HINT, Authenticator, HeldRight, Role, token_digest
from holdfast.server.http.responses import without_traceback
from holdfast.stores.definitions.permissions import CLUSTER, Permissions, Right
from holdfast.stores.definitions.reader import STATISTICS

_ROLE_FOR: Final[Mapping[Right, Role]] = {
    Right.PUBLISH: Role.WRITE,
    Right.SUBSCRIBE: Role.WRITE,
    Right.BROWSE: Role.READ,
    Right.ADMINISTER: Role.ADMIN,
}


class StoreAccess:
    """Recognises users by their tokens and asks for their rights. Cost: a hash and two look-ups a request."""

    __slots__ = ("_authenticator", "_known", "_permissions", "_users")

    def __init__(self, authenticator: Authenticator, permissions: Callable[[], Permissions]) -> None:
        """``permissions`` returns those in force; it is called at every request."""
        self._authenticator = authenticator
        self._permissions = permissions
        self._known: Permissions | None = None
        self._users: dict[str, str] = {}

    def problem_with(self, authorization: bytes | None, right: Right, store: str = CLUSTER) -> HoldfastError | None:
        """None when the caller has the right on the store, by default on the cluster; else the error to answer."""
        if store == STATISTICS and right is Right.PUBLISH:
            return PermissionDenied(
                "only the service publishes here", hint="names that begin with _ are those of the service", store=store
            )
        permissions = self._permissions()
        authenticator = self._authenticator
        if not permissions.enabled:
            return authenticator.problem_with(authorization, _ROLE_FOR[right])
        if authenticator.required and authenticator.problem_with(authorization, Role.ADMIN) is None:
            return None
        user = self.user_of(authorization)
        if user is None:
            return PermissionDenied("a valid bearer token is needed", code=Code.UNAUTHENTICATED, hint=TOKEN_HINT)
        try:
            permissions.require(user, right, store)
        except PermissionDenied as error:
            return without_traceback(error)
        return None

    def require(self, authorization: bytes | None, right: Right, store: str = CLUSTER) -> None:
        """Return when the caller may. Raises: PermissionDenied (unauthenticated, permission_denied)."""
        problem = self.problem_with(authorization, right, store)
        if problem is not None:
            raise problem

    def allows(self, authorization: bytes | None, right: Right, store: str = CLUSTER) -> bool:
        """Whether the caller may: for lists, which show each caller what it may see."""
        return self.problem_with(authorization, right, store) is None

    def held(self, authorization: bytes | None, right: Right, store: str) -> HeldRight:
        """The right, to be asked for again at each act: after tokens or definition were replaced it is looked up."""
        ask = partial(self.problem_with, authorization, right, store)
        return HeldRight(self._authenticator, authorization, ask, self._permissions)

    def user_of(self, authorization: bytes | None) -> str | None:
        """The user whose token this is."""
        permissions = self._permissions()
        if permissions is not self._known:
            self._known = permissions
            self._users = {user.token_sha256: name for name, user in permissions.users.items() if user.token_sha256}
        return self._users.get(token_digest(authorization).hex())
