"""Every error of the product. A message says what, where, the limit and what to do next."""

from __future__ import annotations


class MalleTrainError(Exception):
    """The root: catch it to catch all of ours."""


class InvariantError(MalleTrainError):
    """A bug of ours: the state or an answer breaks a rule. Carries the history in its message."""


class UserError(MalleTrainError):
    """The request cannot be served as it is; the message says what to change."""


class UsageError(UserError):
    """The command line or the request asks for something that cannot be."""


class MalformedRequestError(UsageError):
    """The request is none that could be understood, whatever is asked for."""


class NoControllerError(UserError):
    """No controller answers for the state directory."""


class ConfigError(UserError):
    """The configuration file is wrong: which key, what it has, what it may have."""


class TraceError(UserError):
    """A line of a trace is no interval: which file, which line, and what it should be."""


class WorkloadError(UserError):
    """A workload is wrong: which file or generator, which job, which key, what it may have."""


class SweepError(UserError):
    """A sweep cannot be run: what in which file is wrong, or which runs failed and why."""


class ConflictError(UserError):
    """The request does not fit the state as it is now."""


class UnknownJobError(UserError):
    """No job has this id or name."""


class StateDirError(UserError):
    """The state directory cannot be used: in use, on a network file system, not ours."""


class JournalError(StateDirError):
    """The journal is corrupt or of a newer version; it was not touched."""


class JournalWriteError(StateDirError):
    """The journal takes nothing now (the disk is full); nothing of it is lost."""


class DevClusterError(UserError):
    """The development cluster is not as asked for: what failed, and where its log is."""


class BatchError(MalleTrainError):
    """The batch system did not do what was asked."""

    def __init__(self, message: str, *, is_transient: bool) -> None:
        super().__init__(message)
        #: Trying again later may help.
        self.is_transient = is_transient


class WireError(MalleTrainError):
    """A peer sent something that is no message of ours; the connection is closed."""


class TrainError(UserError):
    """The training script does something the library cannot make malleable."""
