"""The same rights a second time, from a few rules written by hand: the file of expected answers must follow from them.

Neither the table that is served nor its reference is read here. The rules are those of ``docs/reference/rights.md`` in
words: what a role includes, which right a kind of act on stores needs, and what a token for some keys may do.
"""

from __future__ import annotations

import re

from tests.integration.test_rights_table import ROLES, read_expected

from holdfast.stores.definitions.permissions import Right

OPEN, READ, WRITE, JOB, ADMIN = range(5)
WHOLE, OWN, FOREIGN, FOREIGN_ID, ANY = "whole service", "own keys", "other keys", "another id", "no keys"

LOG: tuple[tuple[str, int, str], ...] = (
    # The first rule that fits a line says the role, and what a token for seat/ may do.
    (r"GET /(livez|readyz|ok|openapi.json|docs)$", OPEN, ANY),
    (r"POST /v1/commits? jobs$", JOB, ANY),
    (r"POST /v1/commits? (publish|maps|acknowledge)$", WRITE, WHOLE),
    (r"POST /v1/commits? foreign id$", WRITE, FOREIGN_ID),
    (r"POST /v1/commits? foreign key$", WRITE, FOREIGN),
    (r"POST /v1/commits? own ", WRITE, OWN),
    (r"\w+ /v1/status/\S+ foreign", WRITE, FOREIGN),
    (r"\w+ /v1/status/\S+ own", WRITE, OWN),
    (r"\w+ /v1/staged/", WRITE, WHOLE),
    (r"GET /v1/jobs", JOB, ANY),
    (r"GET /v1/version$", READ, ANY),
    (r"GET /v1/subscribe stores$", WRITE, WHOLE),  # the right to subscribe, which the role write has
    (r"(GET|POST) /v1/(subscribe|keys|range|read)\S* own", READ, OWN),
    (r"(GET|POST) /v1/(subscribe|keys|range|read)\S* (foreign|all)", READ, FOREIGN),
    (r"\w+ /v1/(configuration|admin/)", ADMIN, WHOLE),
    (r"(PUT|DELETE) /v1/retention", ADMIN, WHOLE),
    (r"GET /", READ, WHOLE),
)
BOTH = "administer, after subscribe"
"""A subscriber's act that concerns others, too."""
STORES: tuple[tuple[str, Right | str, bool], ...] = (
    # The right, and whether it is one on the cluster.
    (r"GET /metrics$", Right.BROWSE, True),
    (r"GET /v1/cluster", Right.BROWSE, True),
    (r"\w+ /v1/cluster", Right.ADMINISTER, True),
    (r"POST /v1/commits? (publish|maps)$", Right.PUBLISH, False),
    (r"POST /v1/commits? acknowledge$|GET /v1/subscribe stores$", Right.SUBSCRIBE, False),
    (r".* take_over$", BOTH, False),
    (r"DELETE \S+/durables/{durable} dynamic$", Right.SUBSCRIBE, False),
    (r"(GET|POST) \S+/durables/{durable}/(messages|subscribe|acks|rewind)$", Right.SUBSCRIBE, False),
    (r"GET \S+/maps/", Right.SUBSCRIBE, False),
    (r"POST /v1/stores/{store}/messages$|\w+ \S+/maps/", Right.PUBLISH, False),
    (r"GET ", Right.BROWSE, False),
    (r"", Right.ADMINISTER, False),
)
ROLE_FOR: dict[Right | str, int] = {
    BOTH: ADMIN,
    Right.PUBLISH: WRITE,
    Right.SUBSCRIBE: WRITE,
    Right.BROWSE: READ,
    Right.ADMINISTER: ADMIN,
}
LISTED = "GET /v1/stores"
"""Everybody who is known may ask, and gets what it may see."""


def is_of_stores(line: str) -> bool:
    return "/v1/stores" in line or "/v1/cluster" in line


def by_tokens(line: str) -> str:
    if not is_of_stores(line):
        role, scope = next((role, scope) for rule, role, scope in LOG if re.match(rule, line))
    else:
        right = next(right for rule, right, _ in STORES if re.match(rule, line))
        role, scope = (READ, ANY) if line == LISTED else (ROLE_FOR[right], WHOLE)
    if role == OPEN:
        return "." * 10
    whole = ["." if held >= role else "D" for held in (READ, WRITE, JOB, ADMIN)]
    for_seat = {WHOLE: "D", FOREIGN: "D", FOREIGN_ID: "T", OWN: ".", ANY: "."}[scope]
    return "UUU" + "".join(whole) + "".join(for_seat if held >= role else "D" for held in (READ, WRITE, JOB))


def by_users(line: str) -> str:
    right, of_cluster = next((right, of_cluster) for rule, right, of_cluster in STORES if re.match(rule, line))

    def holds(role: str) -> bool:
        if line == LISTED:
            return True
        if of_cluster:
            return right in ROLES[role].get("cluster", [])
        granted = [one for store in ("orders", "ord*", "*") for one in ROLES[role].get("stores", {}).get(store, [])]
        return {Right.SUBSCRIBE, Right.ADMINISTER} <= set(granted) if right == BOTH else right in granted

    return "UU" + "".join("." if holds(role) else "D" for role in ROLES)


def test_the_expected_answers_follow_from_the_rules() -> None:
    wrong: list[str] = []
    for line, letters in read_expected().items():
        tokens, _, users = letters.partition(" ")
        derived = by_tokens(line)
        if line == "POST /v1/admin/step-down":
            derived = derived[:6] + "-" + derived[7:]  # it would end the service
        if tokens != derived:
            wrong.append(f"{letters}  {line}: {derived} follows for tokens")
        if users and users != by_users(line):
            wrong.append(f"{letters}  {line}: {by_users(line)} follows for users")
    assert wrong == []


def test_each_rule_is_used() -> None:
    """A rule that no line meets first would prove nothing."""
    lines = read_expected()
    for rules, those in (
        (LOG, [line for line in lines if not is_of_stores(line)]),
        (STORES, [line for line, letters in lines.items() if " " in letters]),
    ):
        used = {next(rule for rule, *_ in rules if re.match(rule, line)) for line in those}
        assert used == {rule for rule, *_ in rules}
