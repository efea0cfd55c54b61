"""``_statistics``, the store that the service makes itself: no definition has it, and no command of it is recorded.

It is in memory, outside the limits of the cluster, and there only while subscribers are attached. Its durables are made
of its templates: each keeps the newest messages, as many as the store.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.stores.definitions.cluster import (
    BUILT_IN_TEMPLATES,
    Discard,
    DurableType,
    StoreDefinition,
    TemplateDefinition,
)
from holdfast.stores.definitions.reader import STATISTICS

STATISTICS_MESSAGES_MAX: Final = 1_000
STATISTICS_BYTES_MAX: Final = 16 << 20
_DURABLES_MAX: Final = 100


def _template(kind: DurableType) -> TemplateDefinition:
    pattern = BUILT_IN_TEMPLATES[kind].pattern
    if kind is not DurableType.LAST_VALUE:
        most, most_bytes = STATISTICS_MESSAGES_MAX, STATISTICS_BYTES_MAX
        pattern = replace(pattern, discard=Discard.OLD, message_limit=most, bytelimit=most_bytes)
    return TemplateDefinition(kind, pattern)


STATISTICS_STORE: Final = StoreDefinition(
    name=STATISTICS,
    description="the numbers of /metrics as messages, while subscribers are attached",
    replicated=False,
    bytelimit=STATISTICS_BYTES_MAX,
    message_limit=STATISTICS_MESSAGES_MAX,
    max_message_size=STATISTICS_BYTES_MAX,
    dynamic_durable_limit=_DURABLES_MAX,
    swap_bytelimit=-1,
    templates={kind: _template(kind) for kind in DurableType if kind is not DurableType.MAP},
    default_template=DurableType.SHARED,
)
