"""Times and durations as accounting logs write them.

Local time without an offset is told by a time zone that the user names, else taken as UTC. When
clocks are set back an hour is there twice: both readings are given, and who knows how long the
job ran chooses. When they are set forward an hour is missing: times in it are read as if clocks
had not been set yet.
"""

from __future__ import annotations

import math
import re
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from malletrain.errors import TraceError, UsageError
from malletrain.traces.files import quoted
from malletrain.traces.jobs import MOST_S
from malletrain.traces.tally import Tally

_UNKNOWN = {"", "unknown", "none", "n/a", "null", "nan", "nat"}
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")
#: From 1973 on, and no milliseconds.
_EPOCH_S = re.compile(r"\d{9,11}(\.\d*)?")
#: Slurm's `Elapsed`: [days-]hours:minutes:seconds, or minutes:seconds.
_ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?")


class Clock:
    """Reads times, and knows by the end whether the zone was needed."""

    def __init__(self, zone_name: str | None, tally: Tally) -> None:
        self._zone = UTC if zone_name is None else _zone(zone_name)
        self._is_zone_given = zone_name is not None
        self._tally = tally
        self._was_needed = False
        self._was_used = False

    def readings(self, text: str, column: str) -> tuple[float, ...]:
        """Return the epoch seconds: none if unknown, two if the hour was there twice."""
        if len(text) < 8 and text.strip().lower() in _UNKNOWN:
            return ()
        text = text.strip()
        self._was_used = True
        if _EPOCH_S.fullmatch(text):
            return (float(text),)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise TraceError(
                f"{column} is {quoted(text)}: it must be a time such as 2026-03-29T01:30:00, "
                "or Unknown"
            ) from error
        if moment.tzinfo is not None:
            return (moment.timestamp(),)
        self._was_needed = True
        return self._local(moment)

    def close(self) -> None:
        """Note what was assumed.

        Raises:
            UsageError: a zone was named and no time was a local one.
        """
        if self._is_zone_given and self._was_used and not self._was_needed:
            raise UsageError("--time-zone cannot apply: every time of the log has its offset")
        if self._was_needed and not self._is_zone_given:
            self._tally.say("times without offset were taken as UTC; --time-zone names another")

    def _local(self, moment: datetime) -> tuple[float, ...]:
        if self._zone is UTC:
            return (moment.replace(tzinfo=UTC).timestamp(),)
        first = moment.replace(tzinfo=self._zone)
        second = first.replace(fold=1)
        if first.utcoffset() == second.utcoffset():
            return (first.timestamp(),)
        if first.timestamp() > second.timestamp():
            self._tally.add("times in the hour that clocks skipped, read as if not yet set forward")
            return (first.timestamp(),)
        self._tally.add("times in the hour that was there twice, the one that fits was taken")
        return (first.timestamp(), second.timestamp())


def _zone(name: str) -> tzinfo:
    if match := _OFFSET.fullmatch(name):
        sign, hours, minutes = match.groups()
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        if offset < timedelta(days=1):
            return timezone(-offset if sign == "-" else offset)
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(
            f"--time-zone {quoted(name)}: there is no such zone here; "
            "give a name such as Europe/Berlin or an offset such as +01:00"
        ) from error


def duration_s(text: str, column: str) -> float | None:
    """Return a duration, written as seconds or as Slurm's `Elapsed`; None if unknown."""
    text = text.strip()
    if text.lower() in _UNKNOWN:
        return None
    if match := _ELAPSED.fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        found_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    else:
        try:
            found_s = float(text)
        except ValueError:
            found_s = math.inf
    if not abs(found_s) <= MOST_S:
        raise TraceError(
            f"{column} is {quoted(text)}: it must be seconds, or a time such as 1-02:30:00"
        )
    return found_s
