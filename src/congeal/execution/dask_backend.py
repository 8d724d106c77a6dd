"""The Dask backend: a cluster on this machine, or an existing one. Tasks exchange files, so nothing is scattered."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from congeal.errors import CongealError, RunFailed, first_line, require
from congeal.execution.backends import Backend, helper_environment, start_forkserver, worker_environment

log = logging.getLogger("congeal")

# Seconds to wait for a scheduler at the start of a run, chosen by judgement: a wrong address is reported soon …
CONNECT_SECONDS = 20.0
# … and during a run, chosen by judgement: a cluster manager restarts a scheduler within minutes.
RECONNECT_SECONDS = 600.0
# Settings of a cluster for one run: profiling and monitoring many times a second take time from its workers. The
# environment of workers is that of this process: Dask's own would make the C library return freed memory at once.
LOCAL_SETTINGS = {
    "distributed.nanny.pre-spawn-environ": {},
    "distributed.scheduler.allowed-failures": 10,
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "500ms",
}
WORKER_LOSSES = ("KilledWorker", "CommClosedError", "FutureCancelledError", "FuturesCancelledError", "CancelledError")


class DaskBackend(Backend):
    """A client of a Dask scheduler.

    Parameters
    ----------
    client : distributed.Client
    cluster : distributed.LocalCluster, optional
        Started for this run, and stopped with it.
    address : dict, optional
        Arguments to connect again after a restart of the scheduler; None if the client belongs to the caller.
    owned : bool
        Whether `close` closes the client; not one that the caller opened.
    """

    def __init__(self, client: Any, cluster: Any = None, address: dict[str, Any] | None = None, owned: bool = True):
        self._client, self._cluster, self._address, self._owned = client, cluster, address, owned
        self._executor = client.get_executor(pure=False)
        if "dashboard" in client.scheduler_info(n_workers=0).get("services", {}):
            log.info("Dask dashboard: %s", client.dashboard_link)

    @classmethod
    def local(cls, count: int) -> DaskBackend:
        """A scheduler in this process and `count` worker processes, reachable from this machine only."""
        distributed = require("distributed", "cluster")
        from dask import config

        method = start_forkserver("distributed").get_start_method()
        settings = {**LOCAL_SETTINGS, "distributed.worker.multiprocessing-method": method}
        with config.set(settings), helper_environment():
            cluster = distributed.LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                worker_dashboard_address=None,
                silence_logs=logging.ERROR,
                env=worker_environment(),
            )
        return cls(distributed.Client(cluster, set_as_default=False), cluster)

    @classmethod
    def at(cls, where: str) -> DaskBackend:
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
        return cls(_connect(address, CONNECT_SECONDS), address=address)

    @property
    def workers(self) -> int:
        """Number of threads of all workers of the scheduler."""
        try:
            return int(sum(self._client.nthreads().values()))
        except Exception:  # the scheduler is restarting
            return 0

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run it on any worker."""
        try:
            sent: Future[Any] = self._executor.submit(function, *arguments)
            return sent
        except Exception as error:
            if self.is_alive():
                raise
            failed: Future[Any] = Future()
            failed.set_exception(CancelledError(first_line(error)))
            return failed

    def is_worker_loss(self, error: BaseException) -> bool:
        """A worker died too often, or the scheduler lost its tasks."""
        return isinstance(error, CancelledError) or type(error).__name__ in WORKER_LOSSES

    def is_alive(self) -> bool:
        """Whether the client is connected to the scheduler."""
        return bool(self._client.status == "running")

    def recover(self) -> None:
        """Wait for the scheduler, or for its replacement."""
        if self.is_alive():
            return
        if self._address is None:
            raise RunFailed("the Dask scheduler is gone; run the same command again to go on")
        log.warning("the Dask scheduler is gone; waiting for it to come back")
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # its tracebacks repeat this at length
        _close(self._client)
        self._client = _connect(self._address, RECONNECT_SECONDS, reconnect=True)
        self._executor = self._client.get_executor(pure=False)

    def close(self) -> None:
        """Disconnect, and stop the cluster that was started for this run."""
        if self._owned:
            _close(self._client)
        if self._cluster is not None:
            for nanny in self._cluster.workers.values():  # results are files; a regular shutdown takes two seconds
                nanny.auto_restart = False
                if nanny.process is not None and nanny.process.is_alive():
                    with suppress(ProcessLookupError):
                        os.kill(nanny.process.pid, signal.SIGKILL)
            self._cluster.close(timeout=10)


def _connect(address: dict[str, Any], timeout: float, *, reconnect: bool = False) -> Any:
    """A client, or an error in one sentence."""
    distributed = require("distributed", "cluster")
    deadline, problem = time.monotonic() + timeout, ""
    where = next(iter(address.values()))
    while time.monotonic() < deadline:
        left = max(0.1, deadline - time.monotonic())
        try:
            return distributed.Client(**address, set_as_default=False, timeout=min(left, 10.0))
        except (OSError, TimeoutError, ValueError) as error:
            problem = first_line(error)
            if isinstance(error, ValueError) or not reconnect:
                break
            time.sleep(min(left, 1.0))
    if reconnect:
        raise RunFailed(f"the Dask scheduler at {where} did not come back; run the same command again to go on")
    raise CongealError(f"there is no Dask scheduler at {where} ({problem}); start one with 'dask scheduler'")


def _close(client: Any) -> None:
    try:
        client.close(timeout=5)
    except Exception as error:  # the connection is lost already
        log.debug("closing the Dask client: %s", error)
