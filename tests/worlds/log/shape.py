"""The sizes, bounds and fault rates of a world of the log, drawn from its seed.

Every world draws which kinds of faults it has at all (swarm testing), so that worlds with one kind of fault reach
depths that a mixture never reaches. ``protocol_width`` makes the protocol's corners reachable.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Any, Final

import structlog
from tests.worlds.harness import patched

from holdfast.commit.format import batch, chain
from holdfast.commit.format.batch import VERSION_JUMP
from holdfast.commit.leadership import claims, takeover_machine
from holdfast.commit.leadership.evidence import INTERVAL_MS_MIN, SIGNS_MISSED
from holdfast.commit.reading import reader
from holdfast.commit.stages import persist, release, sequence
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.commit.stages.release import PROOF_MS_MAX
from holdfast.copies import chain as copies_chain
from holdfast.retention import cut, sweep

__all__ = ["FAULTS", "WorldShape", "draw_shape", "protocol_width", "silent"]

FAULTS: Final = (
    "put_request_lost",
    "put_answer_lost",
    "put_late",
    "put_sent_twice_by_the_store_client",
    "put_copied",
    "put_busy_409",
    "put_throttled_503",
    "put_500_after_commit",
    "read_failed",
    "list_failed",
    "list_torn",
    "crash",
    "pause",
    "long_pause",
    "clock_jump",
    "partition",
    "nodes_cut",
    "question_lost",
    "store_unfit",
    "probe_failed",
    "rude_takeover",
    "claim_dawdles",
    "step_down",
    "client_request_lost",
    "client_request_late",
    "client_answer_lost",
    "client_copy",
    "status_copy",
)


OFTEN_MS: Final = 5.0
DELETE_FAULTS: Final = ("delete_lost", "delete_late")
"""Only in worlds with retention."""


@dataclass(frozen=True, slots=True)
class WorldShape:
    """One world's sizes. ``rates`` holds the chance of each fault, 0 for those this world does not know."""

    span: int
    version_jump: int
    nodes: int
    clients: int
    rules: PipelineRules
    rates: dict[str, float]
    latency_ms: float
    think_ms: float
    retention: bool
    look_ms: float
    """How often a leader applies the retention policies."""
    hot_keys: int
    sign_interval_ms: float
    question_ms: float
    """A standby asks its leader after one to two times this."""
    idle_check_ms: float
    probes: bool
    stalled_ms_max: float
    """After how long on a silent store a leader refuses commits. Most worlds wait, so that spans fill."""
    proof_ms: float
    """For how long a leader believes a proof of ownership. Where it is short, older claims are removed."""


def draw_shape(random: Random) -> WorldShape:
    """The shape of the world of one seed; ``random`` is that world's own."""
    shape = _draw_any(random)
    if shape.retention:
        # Drawn apart, so that what a seed draws for all other worlds stays the same: mutants name their seeds.
        apart = Random()
        apart.setstate(random.getstate())
        rates = {fault: apart.choice((0.0, 0.3, 1.0, 3.0)) for fault in DELETE_FAULTS}
        shape = replace(shape, look_ms=apart.choice((OFTEN_MS, OFTEN_MS, 40.0)), rates={**shape.rates, **rates})
    if shape.span > 8 or random.random() < 0.7:
        return shape
    # A world in which claims are removed, so that a leader that believes an old proof answers what no reader finds:
    # leaders are frozen twice in a row (``World._freeze_twice``), and there is little else. No retention: it keeps
    # objects for longer than any leader retries, or a second create of a removed object would pass for a new proof.
    rates = {**dict.fromkeys(FAULTS, 0.0), "put_request_lost": 10.0, "put_answer_lost": 6.0}
    return replace(
        shape,
        proof_ms=random.choice((400.0, 800.0)),
        nodes=3,
        clients=random.choice((1, 2, 3)),
        latency_ms=2.0,
        idle_check_ms=5_000.0,
        rates=rates,
        retention=False,
    )


def _draw_any(random: Random) -> WorldShape:
    span = random.choice((2, 4, 8, 8, 1000))
    window = min(span, random.choice((1, 2, 3, 4, 8, 8, 30)))
    calm = random.random() < 0.05
    rates = {fault: 0.0 if calm or random.random() < 0.4 else random.choice((0.3, 1.0, 1.0, 3.0)) for fault in FAULTS}
    persist_rules = PersistRules(
        batch_timeout_ms=random.choice((0.5, 2.0, 10.0)),
        batch_timeout_max_ms=20.0,
        batch_bytes=random.choice((80, 400, 1 << 20)),
        window=window,
        puts_per_second_max=random.choice((None, None, None, 100.0)),
        retry_base_ms=random.choice((10.0, 50.0)),
        retry_max_ms=400.0,
        retries_max=random.choice((None, None, 4)),
        give_up_after_ms=random.choice((4_000.0, 60_000.0)),
        hedge_percentile=random.choice((None, 60.0, 90.0)),
    )
    rules = PipelineRules(
        persist=persist_rules,
        window_ms=random.choice((100.0, 1_000.0, 60_000.0)),
        window_bytes=random.choice((20_000, 200_000, 64 << 20)),
    )
    silence_ms = random.choice((60.0, 150.0, 400.0))
    return WorldShape(
        span=span,
        version_jump=random.choice((VERSION_JUMP, VERSION_JUMP, 10)),
        nodes=random.choice((2, 3, 3)),
        clients=random.choice((4, 8, 16)),
        rules=rules,
        rates=rates,
        latency_ms=random.choice((2.0, 8.0, 20.0)),
        think_ms=random.choice((2.0, 10.0, 40.0)),
        retention=span <= 8 and random.random() < 0.3,
        look_ms=0.0,
        hot_keys=random.choice((3, 6)),
        stalled_ms_max=300.0 if silence_ms == 60.0 else inf,
        sign_interval_ms=max(INTERVAL_MS_MIN, silence_ms / SIGNS_MISSED),
        question_ms=silence_ms * 0.45 / 8.0,
        idle_check_ms=random.choice((200.0, 5_000.0)),
        probes=random.random() < 0.3,
        proof_ms=PROOF_MS_MAX,
    )


@contextmanager
def silent() -> Generator[None]:
    """Run the real shells without their lines for the log of a process: a world has thousands of them."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def protocol_width(
    span: int, version_jump: int = VERSION_JUMP, proof_ms: float = PROOF_MS_MAX
) -> AbstractContextManager[None]:
    """Run the real protocol with another W: the span, the page and the jump stay one number, as they must.

    Worlds with a small W reach in hundreds of events what takes W = 1000 a million. So does a small version jump, of
    which the hold-back stays nine tenths and the empty batch one tenth.
    """
    modules = (batch, claims, persist, takeover_machine, reader, cut, sweep, copies_chain)
    values: list[tuple[Any, str, float]] = [(module, "SPAN_MAX", span) for module in modules]
    values.append((release, "PROOF_MS_MAX", proof_ms))
    if version_jump != VERSION_JUMP:
        values += [(module, "VERSION_JUMP", version_jump) for module in (batch, chain, claims, reader)]
        values += [(sequence, "HOLD_BACK", version_jump * 9 // 10), (persist, "HEARTBEAT_VERSIONS", version_jump // 10)]
    return patched(*values)
