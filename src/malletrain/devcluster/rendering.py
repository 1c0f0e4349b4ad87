"""The configuration files of a development cluster, as text. Pure."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from malletrain.devcluster.settings import Preempt, Settings

LOOPBACK = "127.0.0.1"
#: Slurm then listens at the address of the host's name.
_COMMUNICATION = "NoCtldInAddrAny,NoInAddrAny"
_REAL_MEMORY_MB = 16_000


class Site(Struct, frozen=True, kw_only=True):
    """Where on this machine the cluster lives."""

    directory: Path
    #: Whose daemons they are.
    user: str
    host: str
    #: Daemons and `srun` listen at loopback alone, not at every address.
    is_loopback_only: bool
    controller_port: int
    #: Of the first node; those of the others follow.
    node_port: int
    accounting_port: int

    @property
    def conf(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def log_dir(self) -> Path:
        return self.directory / "log"

    @property
    def run_dir(self) -> Path:
        return self.directory / "run"

    @property
    def munge_socket(self) -> Path:
        return self.directory / "munge" / "munge.socket"

    @property
    def database_socket(self) -> Path:
        return self.directory / "run" / "database.socket"


def node_names(settings: Settings) -> tuple[str, ...]:
    width = max(2, len(str(settings.nodes)))
    return tuple(f"nd{number:0{width}}" for number in range(1, settings.nodes + 1))


def slurm_conf(settings: Settings, site: Site) -> str:
    """Write slurm.conf: two partitions over all nodes, `batch` and `scavenge` which gives way."""
    keys = _keys(settings, site)
    names = {key.lower(): key for key in keys}
    for key, value in settings.slurm.items():
        keys[names.get(key.lower(), key)] = value
    lines = [f"{key}={value}" for key, value in keys.items()]
    lines += [
        f"NodeName={name} NodeHostname=localhost NodeAddr={LOOPBACK} "
        f"Port={site.node_port + index} CPUs={settings.cpus} RealMemory={_REAL_MEMORY_MB} "
        f"State=UNKNOWN"
        for index, name in enumerate(node_names(settings))
    ]
    common = "Nodes=ALL DefaultTime=60 MaxTime=INFINITE State=UP"
    gives_way = f"PriorityTier=1 PreemptMode={_mode(settings)} GraceTime={settings.grace_s}"
    lines += [
        f"PartitionName=batch {common} Default=YES PriorityTier=10 PreemptMode=OFF",
        f"PartitionName=scavenge {common} {gives_way}",
    ]
    return "\n".join(lines) + "\n"


def _mode(settings: Settings) -> str:
    return "REQUEUE" if settings.preempt is Preempt.REQUEUE else "CANCEL"


def _keys(settings: Settings, site: Site) -> dict[str, str]:
    keys = {
        "ClusterName": "devcluster",
        "SlurmctldHost": f"{site.host}({LOOPBACK})",
        "SlurmctldPort": f"{site.controller_port}",
        "SlurmUser": site.user,
        "SlurmdUser": site.user,
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={site.munge_socket}",
        "StateSaveLocation": f"{site.directory}/state",
        "SlurmctldPidFile": f"{site.run_dir}/slurmctld.own",
        "SlurmctldLogFile": f"{site.log_dir}/slurmctld.log",
        "SlurmdPidFile": f"{site.run_dir}/slurmd-%n.own",
        "SlurmdLogFile": f"{site.log_dir}/slurmd-%n.log",
        "SlurmdSpoolDir": f"{site.directory}/spool/%n",
        # A node may have more CPUs and memory than the machine.
        "SlurmdParameters": "config_overrides",
        # An ordinary user may not make cgroups.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "MailProg": "/bin/true",
        # A node that was killed serves again as soon as it is back.
        "ReturnToService": "2",
        "SlurmctldTimeout": "30",
        "SlurmdTimeout": "30",
        "KillWait": f"{settings.kill_wait_s}",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=1,bf_resolution=1,sched_interval=2,bf_continue",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": _mode(settings),
    }
    if site.is_loopback_only:
        keys["CommunicationParameters"] = _COMMUNICATION
    if settings.switches:
        keys["TopologyPlugin"] = "topology/tree"
    if settings.has_accounting:
        keys |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": LOOPBACK,
            "AccountingStoragePort": f"{site.accounting_port}",
            "AccountingStoragePass": f"{site.munge_socket}",
        }
    else:
        keys |= {
            "AccountingStorageType": "accounting_storage/none",
            "JobCompType": "jobcomp/filetxt",
            "JobCompLoc": f"{site.log_dir}/jobcomp.log",
        }
    return keys


def topology_conf(settings: Settings) -> str:
    """Write topology.conf: nodes in their order, as evenly as can be, under leaf switches."""
    names, leaves = node_names(settings), range(settings.switches)
    lines = []
    for leaf in leaves:
        first, end = (round(k * len(names) / settings.switches) for k in (leaf, leaf + 1))
        lines.append(f"SwitchName=leaf{leaf + 1} Nodes={','.join(names[first:end])}")
    lines.append(f"SwitchName=root Switches={','.join(f'leaf{leaf + 1}' for leaf in leaves)}")
    return "\n".join(lines) + "\n"


def slurmdbd_conf(site: Site) -> str:
    """Write slurmdbd.conf: the database knows its user by the socket's other end, no password."""
    keys = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={site.munge_socket}",
        "DbdHost": "localhost",
        "DbdAddr": LOOPBACK,
        "DbdPort": f"{site.accounting_port}",
        "SlurmUser": site.user,
        "LogFile": f"{site.log_dir}/slurmdbd.log",
        "PidFile": f"{site.run_dir}/slurmdbd.own",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": site.user,
        "StorageLoc": "slurm_acct",
    }
    if site.is_loopback_only:
        keys["CommunicationParameters"] = _COMMUNICATION
    return "".join(f"{key}={value}\n" for key, value in keys.items())
