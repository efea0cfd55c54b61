"""``holdfast check-config``: the configuration in force, and why."""

from __future__ import annotations

import sys

from holdfast.cli.options import ConfigOption, JsonOption, SetOption, configuration
from holdfast.cli.output import print_json, print_table

__all__ = ["check_config"]


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
                "warnings": list(found.warnings),
            }
        )
        return
    rows = [(o.key, o.value, o.source, o.why) for o in found.origins]
    print_table(("key", "value", "source", "why"), rows)
    for warning in found.warnings:
        sys.stderr.write(f"warning: {warning}\n")
