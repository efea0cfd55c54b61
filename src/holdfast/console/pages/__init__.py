"""Every page and action of the console, in one place. The rows stand with what they show."""

from __future__ import annotations

from typing import Final

from holdfast.console.call import Action, Screen
from holdfast.console.pages import (
    cluster,
    configuration,
    jobs,
    keys,
    log,
    maps,
    messages,
    overview,
    pipelines,
    retention,
    runbooks,
    stores,
    stores_acts,
)

PAGES: Final[tuple[Screen, ...]] = (
    *overview.PAGES, *log.PAGES, *keys.PAGES, *stores.PAGES, *messages.PAGES, *maps.PAGES, *retention.PAGES,
    *cluster.PAGES, *pipelines.PAGES, *configuration.PAGES, *runbooks.PAGES,
)  # fmt: skip
ACTIONS: Final[tuple[Action, ...]] = (
    *cluster.ACTIONS, *keys.ACTIONS, *stores_acts.ACTIONS, *messages.ACTIONS, *maps.ACTIONS, *retention.ACTIONS,
    *configuration.ACTIONS, *jobs.ACTIONS,
)  # fmt: skip
