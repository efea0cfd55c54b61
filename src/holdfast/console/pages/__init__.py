"""Every page and action of the console, in one place. The rows stand with what they show."""

from __future__ import annotations

from typing import Final

from holdfast.console.call import Action, Page
from holdfast.console.pages import overview

PAGES: Final[tuple[Page, ...]] = (*overview.PAGES,)
ACTIONS: Final[tuple[Action, ...]] = (*overview.ACTIONS,)
