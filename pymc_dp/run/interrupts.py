"""One Ctrl-C ends a run: PyMC would take it for the end of one chain, and go on with the next."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class Interrupted(BaseException):
    """Ctrl-C, under a name that PyMC does not catch. It never leaves `pymc_dp.sample`."""


@contextmanager
def ending_the_run() -> Iterator[None]:
    """Raise `Interrupted` at Ctrl-C, in this process and its main thread, where nobody else handles it.

    Worker processes get a KeyboardInterrupt as before: they end quietly. A second Ctrl-C is a KeyboardInterrupt.
    """
    before, process = signal.getsignal(signal.SIGINT), os.getpid()
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield
        return

    def end(*_: Any) -> NoReturn:
        signal.signal(signal.SIGINT, before)
        raise Interrupted if os.getpid() == process else KeyboardInterrupt

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
