"""A take-over costs a client hardly more than the service: clients of every kind at a leader that is frozen or killed.

Source: docs/reference/client.md, "A take-over".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.clients_of_a_pair import HOWS, KINDS, Clients, How, costs, kept, pair
from tests.integration.test_stores_in_log import begin

from holdfast import Client, ClientOptions, Unavailable


@pytest.mark.parametrize("how", HOWS)
def test_every_client_goes_on_at_the_new_leader_and_loses_nothing(
    how: How, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with pair(tmp_path, begin(tmp_path)) as services:
        with Clients(services.urls) as clients:
            books = clients.books
            clients.until_each_confirms_after(0.0)
            at, ready = services.take_over(how)
            # What the old leader had confirmed may still be on its way; until the new one leads nothing is confirmed.
            confirmed = clients.until_each_confirms_after(at + (ready - at) / 2)
            for kind, cost_ms in costs(ready, confirmed).items():
                record_property(f"{how}, {kind}, ms after the service", cost_ms)
        assert not books.failures
        assert set(confirmed) == set(KINDS)
        for versions in books.versions.values():
            assert versions == sorted(set(versions)), "each commit is later than the one before"
        counts = Counter(kept(services.urls))
        assert [body for body in books.published if counts[body] != 1] == []


def test_a_service_without_any_sign_of_life_ends_an_operation_at_its_bound(tmp_path: Path) -> None:
    with pair(tmp_path, begin(tmp_path)) as services:
        for machine in (services.leader, services.standby):
            machine.server.pause()
        options = ClientOptions(request_timeout_ms=2_000, give_up_after_ms=5_000)
        with Client(services.urls, options=options) as client, pytest.raises(Unavailable):
            client.version()
