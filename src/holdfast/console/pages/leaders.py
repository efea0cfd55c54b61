"""The leaders that this console has seen: the leaderships of the log, as far as it was looking."""

from __future__ import annotations

from holdfast.console import units
from holdfast.console.call import Call
from holdfast.console.html import Html
from holdfast.console.parts import Column, code, moment, table


def leaders(call: Call) -> Html:
    """A table, newest first."""
    return table(
        call,
        "leaders",
        [
            Column("Seen since", lambda seen: moment(seen.since_ms)),
            Column("Epoch", lambda seen: units.count(seen.epoch), is_number=True),
            Column("Leader", lambda seen: code(seen.leader_id)),
            Column("Address", lambda seen: seen.address),
        ],
        list(reversed(call.watcher.leaders)),
        caption="Leaders that this console has seen, newest first",
        empty="This console has not seen a leader yet.",
        is_live=False,
    )
