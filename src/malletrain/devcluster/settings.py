"""What a development cluster is to be like."""

from __future__ import annotations

import enum

from msgspec import Struct

from malletrain.errors import UsageError

_BOUNDS = {
    "nodes": (1, 256),
    "cpus": (1, 1024),
    "grace_s": (0, 3600),
    "kill_wait_s": (0, 3600),
    "switches": (0, 256),
}
#: Keys of slurm.conf without which the cluster could not be found, kept apart or ended.
_OWN_KEYS = frozenset(
    {
        *("authtype", "authinfo", "credtype", "clustername", "communicationparameters"),
        *("slurmctldhost", "slurmctldport", "slurmctldpidfile", "slurmctldlogfile"),
        *("slurmdpidfile", "slurmdlogfile", "slurmdspooldir", "slurmduser", "slurmuser"),
        *("statesavelocation", "nodename", "partitionname", "topologyplugin", "include"),
        *("accountingstoragetype", "accountingstoragehost", "accountingstorageport"),
        *("accountingstoragepass", "jobcomptype", "jobcomploc"),
    }
)


class Preempt(enum.Enum):
    """What becomes of a job whose nodes are taken once its grace is over."""

    CANCEL = "cancel"
    REQUEUE = "requeue"


class Settings(Struct, frozen=True, kw_only=True):
    nodes: int = 8
    #: Of each node, however many the machine has.
    cpus: int = 8
    #: Of the partition whose jobs are preempted: from SIGTERM until they are killed.
    grace_s: int = 10
    preempt: Preempt = Preempt.CANCEL
    #: Between SIGTERM and SIGKILL of a job that is cancelled or has come to its time limit.
    kill_wait_s: int = 5
    #: Nodes are spread over so many switches under one root; 0: Slurm knows of none.
    switches: int = 0
    #: Keep accounts in a database (slurmdbd, MariaDB), so that `sacct` works.
    has_accounting: bool = False
    #: Where this machine's name is not 127.0.0.1, Slurm listens at every address or not at all.
    may_be_reachable: bool = False
    #: More keys of slurm.conf, or other values for those that are there.
    slurm: dict[str, str] = {}

    def check(self) -> None:
        """Refuse what no cluster can be like.

        Raises:
            UsageError: which setting, what it is, what it may be.
        """
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise UsageError(f"{name} is {value}: it must be {least} to {most}")
        if self.switches > self.nodes:
            raise UsageError(
                f"switches is {self.switches}: it must be at most {self.nodes}, one for each node"
            )
        for key, value in self.slurm.items():
            if not key.isalnum():
                raise UsageError(f"{key!r} is no key of slurm.conf: it has letters and digits only")
            if key.lower() in _OWN_KEYS:
                raise UsageError(
                    f"{key} cannot be set: dev-cluster needs its own value; leave it out"
                )
            if not value or not value.isprintable():
                raise UsageError(f"{key} is {value!r}: it must be text of one line")
