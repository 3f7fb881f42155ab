import threading
import time

import numba
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_dp import compiling
from pymc_dp.exceptions import UnsupportedOption


def test_a_library_that_computes_the_last_rows_otherwise_is_refused(monkeypatch):
    """Hazard H15: with it the last numbers of an array have other bits than the same ones in its middle."""
    monkeypatch.setattr(numba.config, "USING_SVML", True)
    x = pt.vector()
    with pytest.raises(UnsupportedOption, match="NUMBA_DISABLE_INTEL_SVML=1"):
        compiling.compiled([x], pt.exp(x))


def test_threads_that_compile_at_once_leave_each_other_their_flags(monkeypatch):
    """Hazard H15: flags are global, and the first thread to end puts back what the second one has to do without."""
    found, first_compiles = [], threading.Event()

    def compile_slowly(*_, **__):
        first_compiles.set()
        time.sleep(0.2)
        found.append(pytensor.config.numba__fastmath)

    monkeypatch.setattr(compiling, "pymc_compile", compile_slowly)
    threads = [threading.Thread(target=compiling.compiled, args=([], [])) for _ in range(2)]
    with pytensor.config.change_flags(numba__fastmath=True):
        threads[0].start()
        first_compiles.wait()
        time.sleep(0.1)
        threads[1].start()
        for thread in threads:
            thread.join()
    assert found == [False, False]
