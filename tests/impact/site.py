"""A made-up site: a journal, its log of commands and its accounting, by minutes of one day."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

from malletrain.batch.commands import CommandKind, CommandRecord
from malletrain.core.apply import replay
from malletrain.core.events import AnyEvent, NodesJoined, NodesLeaving, NodesLost
from malletrain.core.ledger import NodeSeconds
from malletrain.core.metrics import totals
from malletrain.core.model import Node
from malletrain.impact.accounting import BatchJob, read
from malletrain.impact.impact import Impact, impact
from malletrain.impact.stays import held
from malletrain.traces.files import Lines

DAY_S = 1_796_000_000.0
SIGNALLED = "the node got SIGTERM"
HEADER = "JobID|JobName|State|Submit|Eligible|Start|End|NodeList"
NAME = "malle-ab12"


def accounting(text: str) -> tuple[BatchJob, ...]:
    return read(Lines("log", io.BufferedReader(io.BytesIO(text.encode()))))


@dataclass
class Site:
    events: list[AnyEvent] = field(default_factory=list)
    commands: list[CommandRecord] = field(default_factory=list)
    rows: list[str] = field(default_factory=lambda: [HEADER])

    def join(self, at_s: float, **pilots: str) -> None:
        """Hosts, by the pilot that holds each: node ids are those of the pilots."""
        nodes = tuple(
            Node(pilot, opened_at_s=DAY_S + at_s, host=host, pilot_id=pilot)
            for host, pilot in pilots.items()
        )
        self.events.append(NodesJoined(at_s=DAY_S + at_s, nodes=nodes))

    def leave(self, at_s: float, *node_ids: str, reason: str = SIGNALLED) -> None:
        self.events.append(
            NodesLeaving(
                at_s=DAY_S + at_s,
                node_ids=node_ids,
                deadline_at_s=DAY_S + at_s + 30,
                reason=reason,
            )
        )

    def lose(self, at_s: float, *node_ids: str, reason: str = "its agent ended") -> None:
        self.events.append(NodesLost(at_s=DAY_S + at_s, node_ids=node_ids, reason=reason))

    def run(self, at_s: float, kind: CommandKind, *command: str, status: int | None = 0) -> None:
        self.commands.append(
            CommandRecord(at_s=DAY_S + at_s, kind=kind, command=command, took_s=0.01, status=status)
        )

    def account(
        self,
        job_id: str,
        start: float,
        end: float,
        hosts: str,
        *,
        ready: float | None = None,
        name: str = "cfd",
        state: str = "COMPLETED",
    ) -> None:
        """Write a line of `sacct -P`; times are seconds of the day, and written whole."""
        ready = start if ready is None else ready
        times = "|".join(str(int(DAY_S + at_s)) for at_s in (ready, ready, start, end))
        self.rows.append(f"{job_id}|{name}|{state}|{times}|{hosts}")

    def impact(
        self, from_s: float, to_s: float, *, has_accounting: bool = True, has_log: bool = True
    ) -> Impact:
        jobs = accounting("\n".join(self.rows) + "\n") if has_accounting else None
        return impact(
            held(None, self.events, DAY_S + from_s, DAY_S + to_s),
            self.commands if has_log else None,
            jobs,
        )

    def ledger(self) -> NodeSeconds:
        return totals(replay(self.events))
