"""What the state machine of the stores promises, and which check of the worlds and models judges it.

| promise | judged by |
|---|---|
| nothing confirmed is lost | every message a model has pending is delivered in the end, also after a crash |
| nothing acknowledged comes back | only what a model has pending is delivered; a rewind puts back what is retained |
| order per publisher | no message is first delivered before an earlier one of its publisher |
| delivery counts are exact | each delivery is the model's count plus one |
| deadlines do not move | after a crash the next deadline, and all that follows, is what it was |
| nothing early, nothing late | no delay ends before its time; the machine asks to be woken in time |
| dead letters keep their cause | each is announced until it is stored, with the cause and the count that it died of |
| what is taken back is told | a subscriber is told of each message that it holds no more and did not give up |
| a standard durable has one consumer | another name is refused; who loses the durable, and why, is the model's |
| one message, one place | totals per durable and per store are the models' |
| a resent message is stored once | duplicates get the numbers of the first time, a gap is refused |
| maps are linear | conditions hold exactly, a stale fence writes nothing, a session's locks go with it |
| a command is carried out or refused | the machine raises nothing but ``HoldfastError`` |
| what is not logged changes nothing | a command without a record leaves every byte of the state as it was |
| a follower is the same | it has the machine's results, effects and bytes, whatever it was made of |
| replay is the same | a record gives the same result again, a snapshot and the records after it give the same state |
"""

from __future__ import annotations

from tests.worlds.harness import PromiseBroken

__all__ = ["promise"]


def promise(holds: object, text: str, **facts: object) -> None:
    """Raise ``PromiseBroken`` unless ``holds``."""
    if not holds:
        listed = " ".join(f"{name}={value!r}" for name, value in facts.items())
        raise PromiseBroken(f"{text}: {listed}")
