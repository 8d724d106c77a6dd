"""Dask: a cluster on this machine, or one that is there already. Tasks are pure file work, so nothing is scattered."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from congeal.distributed.nursery import begin_nursery, environment, start_method
from congeal.errors import CongealError, RunFailed, first_line, require

log = logging.getLogger("congeal")

CONNECT = 20.0  # seconds to wait for a scheduler when a run begins …
PATIENCE = 600.0  # … and for one to come back in the middle of it
# Of a cluster for one run. Nobody looks at the profile of its workers, and what they watch of themselves many times a
# second takes time from their work.
LOCAL = {
    "distributed.scheduler.allowed-failures": 10,
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "500ms",
}
LOST = ("KilledWorker", "CommClosedError", "FutureCancelledError", "FuturesCancelledError", "CancelledError")


class Dask:
    """A client of a Dask scheduler.

    Parameters
    ----------
    client : distributed.Client
    cluster : distributed.LocalCluster, optional
        Started for this run, and ended with it.
    address : dict, optional
        How to connect again when the scheduler was restarted; None where that is somebody else's business.
    owned : bool
        Whether the client is closed in the end.
    """

    def __init__(self, client: Any, cluster: Any = None, address: dict[str, Any] | None = None, owned: bool = True):
        self._client, self._cluster, self._address, self._owned = client, cluster, address, owned
        self._executor = client.get_executor(pure=False)
        if client.dashboard_link and self._has_dashboard():
            log.info("Dask dashboard: %s", client.dashboard_link)

    @classmethod
    def local(cls, count: int) -> Dask:
        """A scheduler in this process and so many worker processes, reachable from this machine only."""
        distributed = require("distributed", "cluster")
        from dask import config

        begin_nursery("distributed")
        with config.set({**LOCAL, "distributed.worker.multiprocessing-method": start_method()}):
            cluster = distributed.LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                worker_dashboard_address=None,
                silence_logs=logging.ERROR,
                env=environment(),
            )
        return cls(distributed.Client(cluster, set_as_default=False), cluster)

    @classmethod
    def at(cls, where: str) -> Dask:
        """tcp://HOST:PORT, or the file that `dask scheduler --scheduler-file` wrote."""
        require("distributed", "cluster")
        if "://" in where:
            address = {"address": where}
        elif os.path.isfile(where):
            address = {"scheduler_file": os.path.abspath(where)}
        elif where.endswith(".json"):
            raise CongealError(f"no such scheduler file: {where}; 'dask scheduler --scheduler-file {where}' writes one")
        else:
            raise CongealError(f"'dask:{where}' is no scheduler: give dask:tcp://HOST:PORT or dask:FILE.json")
        return cls(_connected(address, CONNECT), address=address)

    @classmethod
    def of_client(cls, client: Any) -> Dask:
        """A client that the caller made and closes."""
        return cls(client, owned=False)

    def _has_dashboard(self) -> bool:
        return "dashboard" in self._client.scheduler_info(n_workers=0).get("services", {})

    @property
    def workers(self) -> int:
        """Threads of all workers the scheduler has now."""
        try:
            return int(sum(self._client.nthreads().values()))
        except Exception:  # between two schedulers
            return 0

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run it on any worker."""
        try:
            sent: Future[Any] = self._executor.submit(function, *arguments)
            return sent
        except Exception as error:
            if self.sound():
                raise
            failed: Future[Any] = Future()
            failed.set_exception(CancelledError(first_line(error)))
            return failed

    def lost(self, error: BaseException) -> bool:
        """A worker died once too often, or the scheduler forgot its tasks."""
        return isinstance(error, CancelledError) or type(error).__name__ in LOST

    def sound(self) -> bool:
        """Whether the scheduler is there."""
        return bool(self._client.status == "running")

    def recover(self) -> None:
        """Wait for the scheduler, or for the one that takes its place."""
        if self.sound():
            return
        if self._address is None:
            raise RunFailed("the Dask scheduler is gone; run the same command again to go on")
        log.warning("the Dask scheduler is gone; waiting for it to come back")
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # its tracebacks say the same at length
        _close(self._client)
        self._client = _connected(self._address, PATIENCE, in_the_middle=True)
        self._executor = self._client.get_executor(pure=False)

    def close(self) -> None:
        """Disconnect, and end the cluster that was started for this run."""
        if self._owned:
            _close(self._client)
        if self._cluster is not None:
            self._end_workers()
            self._cluster.close(timeout=10)

    def _end_workers(self) -> None:
        """At once: all they did is in files. Asked politely they take two seconds to end."""
        for nanny in self._cluster.workers.values():
            nanny.auto_restart = False
            if nanny.process is not None and nanny.process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(nanny.process.pid, signal.SIGKILL)


def _connected(address: dict[str, Any], patience: float, *, in_the_middle: bool = False) -> Any:
    """A client, or one sentence on why there is none."""
    distributed = require("distributed", "cluster")
    deadline, problem = time.monotonic() + patience, ""
    where = next(iter(address.values()))
    while time.monotonic() < deadline:
        left = max(0.1, deadline - time.monotonic())
        try:
            return distributed.Client(**address, set_as_default=False, timeout=min(left, 10.0))
        except (OSError, TimeoutError, ValueError) as error:
            problem = first_line(error)
            if isinstance(error, ValueError) or not in_the_middle:
                break
            time.sleep(min(left, 1.0))
    if in_the_middle:
        raise RunFailed(f"the Dask scheduler at {where} did not come back; run the same command again to go on")
    raise CongealError(f"there is no Dask scheduler at {where} ({problem}); start one with 'dask scheduler'")


def _close(client: Any) -> None:
    try:
        client.close(timeout=5)
    except Exception as error:  # it is gone anyway
        log.debug("closing the Dask client: %s", error)
