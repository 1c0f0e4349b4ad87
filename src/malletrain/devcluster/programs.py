"""The programs that a development cluster is made of, and where they are."""

from __future__ import annotations

import os
import shutil

from malletrain.errors import DevClusterError

_SLURM = ("slurmctld", "slurmd", "munged", "munge", "scontrol", "sinfo", "sbatch")
_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr")
#: An ordinary user's PATH need not have the directories of daemons.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def find(name: str) -> str:
    """Return the full path of a program that is there."""
    path = shutil.which(name, path=_PATH)
    assert path is not None, name
    return path


def missing(*, with_accounting: bool = False) -> str:
    """Say in one line what is not installed and how to install it; "" where nothing is missing."""
    lacking = [name for name in _SLURM if shutil.which(name, path=_PATH) is None]
    packages = "slurmctld slurmd slurm-client munge"
    if with_accounting and not lacking:
        lacking = [name for name in _ACCOUNTING if shutil.which(name, path=_PATH) is None]
        packages = "slurmdbd mariadb-server"
    if not lacking:
        return ""
    return f"not installed: {', '.join(lacking)}; on Debian: apt-get install {packages}"


def check_installed(*, with_accounting: bool) -> None:
    """Refuse to go on without the programs.

    Raises:
        DevClusterError: what is missing and how to install it.
    """
    if why := missing(with_accounting=with_accounting):
        raise DevClusterError(why)


def daemon_environment(conf: str, more: dict[str, str]) -> dict[str, str]:
    """Return what a daemon gets of the environment: nothing that jobs could come to rely on."""
    kept = {key: os.environ[key] for key in ("HOME", "USER", "LANG", "TZ") if key in os.environ}
    return {**kept, "PATH": _PATH, "SLURM_CONF": conf, **more}
