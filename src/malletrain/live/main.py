"""The controller's process: the real parts, put together."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket

from malletrain.allocate import allocator
from malletrain.batch.base import BatchSystem
from malletrain.clock import WallClock
from malletrain.config import BatchName, Config, LiveSettings
from malletrain.core.problem import Allocator
from malletrain.errors import MalleTrainError
from malletrain.live.api import Api, HttpServer, bind
from malletrain.live.controller import Controller
from malletrain.live.lenders import lender, listening_address
from malletrain.live.orders import Orders
from malletrain.live.state_dir import Endpoint, StateDir, claim
from malletrain.live.store import SqliteStore

_log = logging.getLogger(__name__)


def run_controller(
    state_dir: StateDir,
    config: Config,
    *,
    batch: BatchName = BatchName.LOCAL,
    port: int = 0,
    is_forced: bool = False,
) -> None:
    """Be the state directory's controller until SIGTERM or SIGINT; then leave nothing running.

    Jobs save their state at the end and go on with the next controller.

    Raises:
        StateDirError: the directory has a controller, or must not be used.
        JournalError: the journal is damaged, or of another version.
        UserError: the port is taken.
        BatchError: the batch system will not lend us nodes as it is configured.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    lock = claim(state_dir, is_forced=is_forced)
    try:
        asyncio.run(_serve(state_dir, config, batch, port))
    except BaseExceptionGroup as group:
        raise _first_of_ours(group) or group from None
    finally:
        lock.release()


def _first_of_ours(group: BaseExceptionGroup) -> MalleTrainError | None:
    """Find the error whose one line says what went wrong."""
    for error in group.exceptions:
        found = _first_of_ours(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, MalleTrainError):
            return found
    return None


def collect_seldom() -> None:
    """Have Python look for cyclic garbage when much has piled up, and not among what is loaded.

    Mostly there is none, and by default a burst of a thousand messages sets off a search of the
    whole heap, which stops everything for as long as the rest of the burst takes.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


async def _serve(state_dir: StateDir, config: Config, name: BatchName, port: int) -> None:
    _raise_file_limit()
    clock = WallClock()
    batch = lender(name, state_dir, config, clock)
    address = listening_address(name, config.scavenge)
    store = SqliteStore(state_dir.journal_path)
    with contextlib.closing(store), contextlib.closing(bind(address, port)) as listener:
        controller = Controller(
            config,
            store=store,
            allocator=chosen_allocator(config.live),
            clock=clock,
            paths=state_dir,
            heed=batch.heed,
        )
        await controller.recover()
        collect_seldom()
        await _Process(state_dir, controller, batch, listener).run()


class _Process:
    """The parts in the order in which they start and end."""

    def __init__(
        self,
        state_dir: StateDir,
        controller: Controller,
        batch: BatchSystem,
        listener: socket.socket,
    ) -> None:
        self._state_dir = state_dir
        self._controller = controller
        self._batch = batch
        self._listener = listener
        self._ending = asyncio.Event()
        api = Api(
            controller,
            Orders(controller, batch),
            state_dir,
            state_dir.token(),
            shut_down=self._ending.set,
        )
        self._server = HttpServer(api, ping_every_s=controller.config.live.ping_every_s)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._ending.set)
        host, port = self._listener.getsockname()[:2]
        url = f"http://{host}:{port}"
        is_up = False
        try:
            async with asyncio.TaskGroup() as tasks:
                working = tasks.create_task(self._controller.run())
                serving = tasks.create_task(self._server.run_on(self._listener))
                self._batch.heed(self._controller.cluster)
                await self._batch.start(url, self._state_dir.token_path, self._controller)
                await self._open_local_nodes()
                self._state_dir.publish(Endpoint(url=url, pid=os.getpid()))
                is_up = True
                await self._ending.wait()
                await self._batch.lend_no_more()
                await self._controller.shut_down()
                await self._batch.stop()
                self._server.should_exit = True
                await serving
                working.cancel()
        except* Exception:
            if is_up or self._controller.cluster.nodes:
                # Workers train on; the next controller finds them.
                await self._batch.detach()
            else:
                await self._batch.stop()
            raise

    async def _open_local_nodes(self) -> None:
        """Open the nodes that the configuration wants at the start, where they are not yet."""
        wanted = self._controller.config.local.nodes - len(
            self._controller.executor.agents.node_ids
        )
        if wanted > 0:
            await self._batch.add_nodes(wanted)


def chosen_allocator(live: LiveSettings) -> Allocator:
    """Make the allocator as it is configured."""
    return allocator(live.allocator.value, live.allocator_time_limit_s)


def _raise_file_limit() -> None:
    """A connection is a file, and the usual limit is a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
