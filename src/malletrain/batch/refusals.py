"""What a batch system's program that took no pilots meant, told by the phrases it used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from malletrain.errors import BatchError


@dataclass(frozen=True, slots=True)
class Refusal:
    #: What the program says, in lower case.
    phrase: str
    #: What to do.
    advice: str
    #: Waiting may help.
    is_transient: bool = False


def refused(system: str, said: str, refusals: Iterable[Refusal], program: str) -> BatchError:
    """Return what was said, with the advice of the first refusal whose phrase occurs in it.

    What nobody knows is tried again.
    """
    told = f"{system} takes no pilots ({said or f'{program} gave no reason'})"
    for known in refusals:
        if known.phrase in said.lower():
            return BatchError(f"{told}: {known.advice}", is_transient=known.is_transient)
    advice = "it is tried again; if it stays, show this line to the administrator"
    return BatchError(f"{told}: {advice}", is_transient=True)
