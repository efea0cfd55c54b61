"""Laws of giving up a write: what it lists as committed is in the log, and nothing else of the write ever is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.spark.mortal import Fate, Killed
from tests.spark.service_process import ServiceProcess
from tests.spark.test_sink_protocol import STEP, notes_left, record_of, wanted, written
from tests.spark.test_sink_stage import (
    dealt,
    expected,
    fate,
    is_held,
    new_options,
    objects_left,
    open_client,
    run,
    service,
)

from holdfast.commit.format.transaction import Transaction
from holdfast.errors import Fenced, InvalidRequest, NotFound
from holdfast.spark import commands
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.service_client import ServiceClient
from holdfast.spark.sink.give_up import Rows, forget, give_up
from holdfast.spark.sink.identity import MicroBatch
from holdfast.spark.sink.record import WriteId, begin, has_notes, read_record, wanted_micro_batch
from holdfast.spark.sink.stage import find_manifest, open_stage, rows_of
from holdfast.spark.sink.task import send_partition

__all__ = ["fate", "service"]


def killed(options: WriteOptions, what: WriteId, fate: Fate, at: int, *, after: bool) -> bool:
    """A write is killed at its n-th request. False where it ended before."""
    fate.left, fate.after = at, after
    try:
        run(options, what, dealt(what.name, 1))
    except Killed:
        return True
    finally:
        fate.left, fate.after = 0, False
    return False


def stop_while_sending(options: WriteOptions, what: WriteId, fate: Fate) -> None:
    """Kill a write later and later, until some of its rows are sent."""
    with open_client(options) as client:
        for dies_at in itertools.count(12, 3):
            assert killed(options, what, fate, dies_at, after=True)
            if has_notes(client, options.application, what.token):
                return


def keys_of(options: WriteOptions, what: WriteId, listed: Iterable[Rows]) -> list[bytes]:
    """The keys of the rows that are listed as committed, as the manifest orders them."""
    with open_client(options) as client, open_stage(options, client) as opened:
        manifest = find_manifest(opened, what.token)
        if manifest is None:
            return []
        keys = {
            each.partition: [key for batch in rows_of(opened, what.token, each) for key in batch["key"].to_pylist()]
            for each in manifest.partitions
        }
    return sorted(
        key for rows in listed if rows.known == "committed" for key in keys[rows.partition][rows.first : rows.last + 1]
    )


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_what_is_listed_as_committed_is_in_the_log_and_the_rest_never_is(
    service: ServiceProcess, fate: Fate, after: bool
) -> None:
    dies_at = 0
    for dies_at in itertools.count(1, 5 * STEP):
        name = f"listed-{after}-{dies_at}"
        options, what = new_options(service), wanted(name)
        if not killed(options, what, fate, dies_at, after=after):
            break
        with open_client(options) as client:
            record = read_record(client, options.application).record
            if record is None or record.state == "done":
                continue  # it was killed before its intent, or while it removed what it had staged
            listed = give_up(client, options, name)
            assert give_up(client, options, name) == listed, "a crash before the caller has the list loses nothing"
            assert all(rows.known != "undecidable" for rows in listed)
            keys_of_list = keys_of(options, what, listed)
            assert keys_of_list == written(service, name)
            assert is_held(options)
            forget(client, options, name)
            assert notes_left(client, options, name) == 0
        assert not is_held(options)
        assert objects_left(options) == []
        with pytest.raises(InvalidRequest, match="given up"):
            end(options, what)
        assert written(service, name) == keys_of_list
    assert dies_at > 20, "it was killed at many places"


def end(options: WriteOptions, what: WriteId) -> None:
    """What a run with the token of a write that is done does: it sends nothing, and compares the rows."""
    from holdfast.spark.sink.record import finish
    from holdfast.spark.sink.writer import digest_rows

    rows = dealt(what.name, 1)
    with open_client(options) as client:
        assert begin(client, options, what).version is None
        finish(client, options, what, [digest_rows(options, each, rows[each]) for each in rows])


def test_giving_up_killed_at_each_request_comes_to_the_same_end(service: ServiceProcess, fate: Fate) -> None:
    dies_at = 0
    for dies_at in itertools.count(1, STEP):
        name = f"twice-{dies_at}"
        options, what = new_options(service), wanted(name)
        stop_while_sending(options, what, fate)
        fate.left, fate.after = dies_at, True
        try:
            with open_client(options) as client:
                give_up(client, options, name)
                forget(client, options, name)
        except Killed:
            fate.left = 0
            with open_client(options) as client:
                give_up(client, options, name)
                forget(client, options, name)
                assert notes_left(client, options, name) == 0
            assert objects_left(options) == []
            continue
        break
    assert dies_at > 5


def test_a_sender_that_was_late_when_its_write_was_given_up_commits_nothing(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch, fate: Fate
) -> None:
    """It has noted its chunk, and is paused before it sends."""
    options, what = new_options(service), wanted("late")
    stop_while_sending(options, what, fate)
    commits_many = ServiceClient.commits_many
    listed: list[Rows] = []

    def late(self: ServiceClient, txns: Iterable[Transaction], *more: object) -> object:
        if not listed:
            with open_client(options) as other:
                listed.extend(give_up(other, options, "late"))
        return commits_many(self, txns, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(ServiceClient, "commits_many", late)
    with open_client(options) as client, open_stage(options, client) as opened:
        intent, manifest = begin(client, options, what), find_manifest(opened, what.token)
        assert manifest is not None
        for each in manifest.partitions:
            try:
                rows = rows_of(opened, what.token, each)
                send_partition(client, options, intent, each.partition, rows, each.digest)
            except (Fenced, InvalidRequest):
                break
    assert listed, "the sender was late"
    assert written(service, "late") == keys_of(options, what, listed)


def test_the_next_write_of_the_application_needs_no_supersede(service: ServiceProcess, fate: Fate) -> None:
    options, what = new_options(service), wanted("ended")
    stop_while_sending(options, what, fate)
    with pytest.raises(InvalidRequest, match="not finished"):
        run(options, wanted("following"), dealt("following", 1))
    with open_client(options) as client:
        give_up(client, options, "ended")
        forget(client, options, "ended")
    run(options, wanted("following"), dealt("following", 1))
    assert written(service, "following") == expected("following")
    with pytest.raises(InvalidRequest, match="given up"):
        end(options, what)


def test_a_stream_goes_on_after_the_micro_batch_that_was_given_up(service: ServiceProcess, fate: Fate) -> None:
    options = new_options(service)
    batches = [MicroBatch("8f1d1c6e-7a53-4d4b-9d3e-222222222222", number) for number in range(2)]
    first, second = map(wanted_micro_batch, batches)
    stop_while_sending(options, first, fate)
    with open_client(options) as client:
        give_up(client, options, str(batches[0]))
        forget(client, options, str(batches[0]))
        record = read_record(client, options.application).record
        assert record is not None and record.has_done(first.token)
        end(options, first)
    run(options, second, dealt(second.name, 1))
    assert written(service, second.name) == expected(second.name)


def test_only_the_unfinished_write_can_be_given_up_and_only_by_its_name(service: ServiceProcess, fate: Fate) -> None:
    options, what = new_options(service), wanted("named")
    with open_client(options) as client:
        with pytest.raises(NotFound):
            give_up(client, options, "named")
        stop_while_sending(options, what, fate)
        for other in ("other", ""):
            with pytest.raises(NotFound) as refused:
                give_up(client, options, other)
            assert refused.value.fields["unfinished"] == "named"
        assert record_of(client, options).state == "intent"
        run(options, what, dealt("named", 2))
        with pytest.raises(NotFound):
            give_up(client, options, "named")
    assert written(service, "named") == expected("named")


def test_the_command_prints_the_list_before_it_forgets_it(service: ServiceProcess, fate: Fate, tmp_path: Path) -> None:
    options, what = new_options(service, tmp_path), wanted("printed")
    stop_while_sending(options, what, fate)
    shown: list[commands.JobResult] = []

    def show(made: commands.JobResult) -> None:
        with open_client(options) as client:
            assert notes_left(client, options, "printed") > 0
        shown.append(made)

    commands.give_up(service.url, options.application, "printed", tmp_path.as_uri(), show)
    committed = written(service, "printed")
    assert shown[0].fields["committed"] == len(committed) > 0
    assert objects_left(options) == []
