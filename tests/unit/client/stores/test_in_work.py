"""Laws of a new connection: it asks to keep what the application works on, and nothing else."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from tests.unit.client.stores.test_consuming import Answers, Service

from holdfast.client.protocol.stores.acknowledgements import WORKED_ON_MAX
from holdfast.client.protocol.stores.subscriber import TARGET_LENGTH_MAX
from holdfast.wire.stores import KEEP_RANGES_MAX

TOKEN = "h.1.1"


def asked_to_keep(service: Service) -> str:
    """The ``keep`` of the next connection, which is lost then."""
    target = service.connects().target
    return parse_qs(urlsplit(target).query).get("keep", [""])[0]


def working(*numbers: int, **options: object) -> Service:
    service = Service(**{"explicit_ack": True, **options})
    service.attaches(token=TOKEN)
    service.delivers(*numbers)
    service.takes()
    return service


def lose(service: Service) -> None:
    service.hears()
    service.loses()
    service.waits()


def test_a_new_connection_keeps_what_is_handed_out_and_not_settled() -> None:
    service = working(1, 2, 3, 4, 5)
    service.delivers(6)  # waits in the buffer: it is delivered again
    answers = Answers()
    service.machine.acknowledge([(2, 2)], 0, answers)
    service.step()
    service.says({"type": "answer", "id": 1, "acknowledged": 1, "stale": []})
    assert answers.stale == []
    service.says({"type": "withdrawn", "ranges": [[5, 5]], "cause": "lapsed"})
    service.machine.acknowledge([(1, 1)], 0, answers)  # on its way: settled on the next connection
    service.step()
    lose(service)
    assert asked_to_keep(service) == "1,3-4"
    service.says({"type": "attached", "prefetch": 8, "token": TOKEN, "kept": [[1, 1], [3, 3]]})
    sent = [(frame["type"], frame.get("ranges")) for frame in service.hears() if frame["type"] != "started"]
    assert sent == [("ack", [[1, 1]]), ("credit", None)]
    lose(service)
    assert asked_to_keep(service) == "1,3", "4 had come back"


def test_a_first_connection_and_another_history_keep_nothing() -> None:
    service = Service(explicit_ack=True)
    assert asked_to_keep(service) == ""
    service = working(1, 2)
    lose(service)
    service.connects()
    service.says({"type": "attached", "prefetch": 8, "token": "h.1.2", "kept": []})
    lose(service)
    assert asked_to_keep(service) == ""


def test_what_is_kept_is_a_part_of_the_subscribers_own_window() -> None:
    service = working(1, prefetch=2)
    lose(service)
    service.connects()
    service.says({"type": "attached", "prefetch": 8, "token": TOKEN, "kept": [[1, 1]]})
    credit = [frame["messages"] for frame in service.hears() if frame["type"] == "credit"]
    assert credit == [], "the window begins at one, and one is held"
    service.machine.acknowledge([(1, 1)], 0)
    service.machine.flush()
    assert [frame["messages"] for frame in service.hears() if frame["type"] == "credit"] == [1]


def test_the_ranges_of_a_handshake_and_the_numbers_in_mind_are_bounded() -> None:
    service = working(*range(2, 2 * WORKED_ON_MAX + 8, 2))
    lose(service)
    kept = asked_to_keep(service).split(",")
    assert len(kept) == KEEP_RANGES_MAX
    assert kept[-1] == str(2 * WORKED_ON_MAX + 6), "the newest: they are in work most likely"


def test_a_handshake_that_has_no_room_for_all_of_them_names_the_newest() -> None:
    """A request line that is too long is not answered at all, and would be sent again without end."""
    service = working(*range(2, 2 * KEEP_RANGES_MAX + 2, 2))
    service.machine._target += f"&matcher={'x' * (TARGET_LENGTH_MAX - 100)}"
    lose(service)
    target = service.connects().target
    assert len(target) <= TARGET_LENGTH_MAX + len("&keep=")
    assert target.endswith(f",{2 * KEEP_RANGES_MAX}")
