"""What a freshly forked worker does to become the user's program, as if it had been started cold.

A script for this very interpreter runs in the fork, with everything imported that its parent
has; any other command replaces the fork. What cannot be started ends with the shell's statuses
(127: not found, 126: found but not to be run) and one line in the log.
"""

from __future__ import annotations

import builtins
import faulthandler
import os
import random
import runpy
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from malletrain import processes
from malletrain.wire import STACK_SIGNAL

NOT_RUNNABLE = 126
NOT_FOUND = 127

#: Variables that are read when an interpreter or a library of its starts: too late in a fork.
_READ_AT_START = ("PYTHON", "LD_", "TORCH", "PYTORCH", "OMP_", "KMP_", "MKL_", "OPENBLAS_")
#: Those among them that `_run_here` takes up.
_TAKEN_UP = frozenset({"PYTHONPATH", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"})
#: What the zygote was started with. Imports add to it: PyTorch's compiler names its cache there.
_OWN_ENV = dict(os.environ)


def run(command: Sequence[str], cwd: str, env: Mapping[str, str], log_path: str) -> None:
    """Run the command in this process; return where it is a script that ends well.

    Raises:
        SystemExit: as the script says, or because it could not be started.
    """
    try:
        processes.redirect_standard_streams(Path(log_path))
    except OSError:
        sys.exit(NOT_RUNNABLE)  # the agent has seen the same when it tried to open the log
    try:
        os.chdir(cwd)
    except OSError as error:
        _refuse(NOT_RUNNABLE, f"working directory {cwd}: {error.strerror}")
    is_fork_enough = _is_own_interpreter(command[0], env) and not _wants_fresh_process(env)
    set_by_imports = {n: v for n, v in os.environ.items() if _OWN_ENV.get(n) != v}
    os.environ.clear()
    os.environ.update(set_by_imports | dict(env) if is_fork_enough else env)
    arguments = [argument for argument in command[1:] if argument != "-u"]
    if is_fork_enough and arguments and _can_run(arguments[0]):
        _run_here(arguments)
    else:
        _replace(command)


def _is_own_interpreter(program: str, env: Mapping[str, str]) -> bool:
    """Tell python, python3 and python3.11 of our own environment from any other's."""
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        return False
    theirs, ours = Path(found).absolute(), Path(sys.executable)
    # Environments link to one base interpreter: the folder makes the difference.
    return theirs.parent.resolve() == ours.parent.resolve() and theirs.resolve() == ours.resolve()


def _wants_fresh_process(env: Mapping[str, str]) -> bool:
    names = {name for name in (*env, *_OWN_ENV) if name.startswith(_READ_AT_START)}
    return any(env.get(name) != _OWN_ENV.get(name) for name in names - _TAKEN_UP)


def _can_run(first_argument: str) -> bool:
    """Leave interpreter options, folders and standard input to an interpreter of its own."""
    if first_argument.startswith("-"):
        return first_argument in ("-m", "-c")
    return not Path(first_argument).is_dir()


def _replace(command: Sequence[str]) -> None:
    # Without it a log shows nothing until a buffer is full.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores them, and what is ignored stays ignored.
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - a list, never a shell
    except FileNotFoundError:
        _refuse(NOT_FOUND, f"{command[0]} is not there, nor on PATH")
    except OSError as error:
        _refuse(NOT_RUNNABLE, f"{command[0]}: {error.strerror}")


def _run_here(arguments: list[str]) -> None:
    """Run `script args`, `-m module args` or `-c code args` as the interpreter would."""
    mode = arguments[0]
    if mode in ("-m", "-c") and len(arguments) < 2:
        _refuse(NOT_RUNNABLE, f"python {mode} needs an argument")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Works even where the interpreter is stuck in a library's call.
    faulthandler.register(STACK_SIGNAL, all_threads=True)
    _reseed()
    _take_up_thread_count()
    if mode == "-m":
        sys.argv = arguments[1:]
        _set_path(str(Path.cwd()))
        _call(lambda: runpy.run_module(arguments[1], run_name="__main__", alter_sys=True))
    elif mode == "-c":
        sys.argv = ["-c", *arguments[2:]]
        _set_path("")
        _call(lambda: _run_as_main(arguments[1].encode(), "<string>", ModuleType("__main__")))
    else:
        source = _read_script(mode)
        main = ModuleType("__main__")
        # Absolute, as Python makes it: the script's child processes may look for it elsewhere.
        main.__file__ = str(Path(mode).absolute())
        sys.argv = arguments
        _set_path(str(Path(mode).resolve().parent))
        _call(lambda: _run_as_main(source, str(main.__file__), main))


def _read_script(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        _refuse(NOT_FOUND, f"script {path} is not there (working directory {Path.cwd()})")
    except OSError as error:
        _refuse(NOT_RUNNABLE, f"script {path}: {error.strerror}")


def _run_as_main(source: bytes, name: str, main: ModuleType) -> None:
    """Make it the main module and leave it so: unlike `runpy`'s, it lasts until the very end."""
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    exec(compile(source, name, "exec"), main.__dict__)  # noqa: S102 - what running a script is


def _set_path(first: str) -> None:
    """Make `sys.path` what a fresh interpreter would have made of the new environment."""
    own = {str(Path(entry).absolute()) for entry in _python_path(_OWN_ENV)}
    inherited = sys.path if sys.flags.safe_path else sys.path[1:]
    rest = [entry for entry in inherited if entry not in own]
    sys.path[:] = [first, *_python_path(os.environ), *rest]


def _python_path(env: Mapping[str, str]) -> list[str]:
    return [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _reseed() -> None:
    """Forks share their parent's generators: give each its own seed, as cold starts have."""
    random.seed()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.seed()


def _take_up_thread_count() -> None:
    """Obey OMP_NUM_THREADS, which OpenMP has read when the parent imported PyTorch."""
    torch, threads = sys.modules.get("torch"), os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdecimal():
        torch.set_num_threads(int(threads))


def _call(program: Callable[[], object]) -> None:
    """Let an error end the process as the interpreter would: its traceback, then status 1."""
    try:
        program()
    except Exception as error:  # a script may raise anything
        frames = _without_our_frames(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.exit(1)


def _without_our_frames(frames: TracebackType | None) -> TracebackType | None:
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while frames is not None and frames.tb_frame.f_code.co_filename in ours:
        frames = frames.tb_next
    return frames


def _refuse(status: int, why: str) -> NoReturn:
    sys.stderr.write(f"malletrain: cannot start the worker: {why}\n")
    sys.stderr.flush()
    sys.exit(status)
