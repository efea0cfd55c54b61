"""``holdfast check-config``: the configuration in force, and why."""

from __future__ import annotations

import sys

from holdfast.cli.options import ConfigOption, JsonOption, SetOption, configuration
from holdfast.cli.output import print_json, print_line, print_table
from holdfast.commit.reading.verify import requests_per_month
from holdfast.settings import LogSettings

__all__ = ["check_config"]


def scrub_cost(log: LogSettings) -> str:
    """What reading the log again in the background costs."""
    if log.scrub_days is None:
        return "scrub: off, no requests; log.scrub_days turns it on"
    for_each, at_most = requests_per_month(log.scrub_days, log.scrub_bytes_per_second)
    return (
        f"scrub: {for_each:.2f} GET requests per object of the log and month "
        f"({for_each * 1_000_000:,.0f} for a million objects), at most {at_most:,} per month"
    )


def check_config(config: ConfigOption = None, settings: SetOption = None, as_json: JsonOption = False) -> None:
    """Show every setting in force, where it came from, and what is wrong or doubtful. Opens nothing."""
    found = configuration(config, settings)
    if as_json:
        print_json(
            {
                "file": None if found.file is None else str(found.file),
                "settings": [
                    {"key": o.key, "value": o.value, "source": o.source, "why": o.why, "rule": o.rule}
                    for o in found.origins
                ],
                "scrub": scrub_cost(found.settings.log),
                "warnings": list(found.warnings),
            }
        )
        return
    rows = [(o.key, o.value, o.source, o.why) for o in found.origins]
    print_table(("key", "value", "source", "why"), rows)
    print_line(scrub_cost(found.settings.log))
    for warning in found.warnings:
        sys.stderr.write(f"warning: {warning}\n")
