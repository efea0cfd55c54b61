"""Does this store keep the promises that the log depends on?

verdict     what answers and reads of one name prove  pure
contest     what a race creates; one name, raced until there is a verdict
at_start    the probe of each start: a short race in this process, and the order of listings
race        the race of two processes, at ``holdfast log init`` and ``holdfast doctor --race``
racer       the two processes
results     what a race found, kept under ``meta/races/``
"""

from __future__ import annotations

from holdfast.objects.probe.at_start import probe
from holdfast.objects.probe.contest import PREFIX, clean_up

__all__ = ["PREFIX", "clean_up", "probe"]
