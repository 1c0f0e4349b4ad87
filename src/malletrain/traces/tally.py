"""What was left out, mended or assumed while a log was read, in words with counts."""

from __future__ import annotations


class Tally:
    def __init__(self) -> None:
        self._counts: dict[str, float] = {}

    def add(self, rule: str, count: float = 1) -> None:
        """Count under a rule; the rule is what is said before the number."""
        self._counts[rule] = self._counts.get(rule, 0) + count

    def say(self, assumption: str) -> None:
        """Note an assumption of which there is nothing to count."""
        self._counts.setdefault(assumption, 0)

    def notes(self) -> tuple[str, ...]:
        """Return what was noted, in the order in which it was first met."""
        return tuple(
            f"{rule}: {_number(count)}" if count else rule for rule, count in self._counts.items()
        )


def _number(count: float) -> str:
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"
