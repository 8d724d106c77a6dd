"""Processes of this machine, one thread each."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing import connection
from typing import Any

from congeal.distributed.engine import is_broken
from congeal.distributed.nursery import begin_nursery, environment, one_thread_each, start_method


class Processes:
    """The standard library's pool, made anew when the system ended one of its processes."""

    def __init__(self, count: int) -> None:
        self.workers = count
        self._pool = self._made()

    def _made(self) -> ProcessPoolExecutor:
        begin_nursery()
        context = multiprocessing.get_context(start_method())
        return ProcessPoolExecutor(self.workers, context, initializer=begin, initargs=(environment(),))

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run it in one of the processes."""
        with one_thread_each():  # processes start as tasks arrive
            try:
                return self._pool.submit(function, *arguments)
            except BrokenExecutor:
                self.recover()
                return self._pool.submit(function, *arguments)

    def lost(self, error: BaseException) -> bool:
        """The pool is broken: a process was ended, and with it the tasks of all."""
        return is_broken(error)

    def sound(self) -> bool:
        """A pool says itself what became of a task."""
        return True

    def recover(self) -> None:
        """A new pool in place of a broken one."""
        try:
            self._pool.submit(nothing).result()
        except BrokenExecutor:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = self._made()

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def nothing() -> None:
    """A task that shows whether the pool is broken."""


def begin(environment: dict[str, str]) -> None:
    """In each process: end when the driver does, however it does."""
    os.environ.update(environment)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
