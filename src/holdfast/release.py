"""Which release of Holdfast this is. Every layer may name it, because this module imports nothing of the package."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

VERSION: Final = "0.1.0"
