"""The end of a run, and the draws that are complete by then.

PyMC calls a callback for every draw, in the main process, also for chains in other processes, and passes the trace
that holds the draw. The draws in those traces were charged: they are returned however the run ends.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import xarray as xr
from pymc.backends.base import BaseTrace
from pymc.sampling.mcmc import _sample_return
from pymc.sampling.parallel import ParallelSamplingError
from xarray import DataTree

from pymc_dp.exceptions import PrivacyError
from pymc_dp.model.context import Model
from pymc_dp.release.interface import ReleasesOfIteration


class Interrupted(BaseException):
    """Ctrl-C as an exception that PyMC does not catch. It never leaves `pymc_dp.sample`."""


@contextmanager
def ending_the_run() -> Iterator[None]:
    """Raise `Interrupted` at Ctrl-C, in the main thread of this process, unless another handler is installed.

    PyMC would end one chain at a KeyboardInterrupt, and continue with the next. Worker processes still get a
    KeyboardInterrupt, at which they end quietly, and so does this process at a second Ctrl-C.
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


class FinishedDraws:
    """A callback of `pm.sample` that keeps every chain's trace and calls the user's callback with each draw.

    `callback_failed` is whether the user's callback has raised, `chains_release` whether chains may release anything:
    PyMC's NUTS does not.
    """

    def __init__(self, callback: Callable[..., Any] | None) -> None:
        self._callback = callback
        self._traces: dict[int, BaseTrace] = {}
        self.callback_failed, self.chains_release = False, True

    def __call__(self, trace: BaseTrace, draw: Any) -> None:
        """Keep the trace of a draw, and call the user's callback."""
        self._traces[int(draw.chain)] = trace
        if self._callback is None:
            return
        try:
            self._callback(trace=trace, draw=draw)
        except KeyboardInterrupt as interrupt:  # PyMC documents that it ends sampling; here it ends the whole run
            raise Interrupted from interrupt
        except BaseException:
            self.callback_failed = True
            raise

    def iterations(self, chains: int) -> list[int]:
        """Return the number of complete iterations, tuning included, of each planned chain."""
        return [len(self._traces[chain]) if chain in self._traces else 0 for chain in range(chains)]

    def releases(self, n_steps: int) -> Iterator[tuple[int, int, int, ReleasesOfIteration]]:
        """Yield chain, iteration, index of the step, and the releases of the step in that iteration, in order."""
        for chain in sorted(self._traces) if self.chains_release else ():
            trace = self._traces[chain]
            of_steps = [trace.get_sampler_stats("releases", place) for place in range(n_steps)]
            for iteration in range(len(trace)):
                for place in range(n_steps):
                    yield chain, iteration, place, of_steps[place][iteration]

    def tree(self, model: Model, tune: int, idata_options: Mapping[str, Any] | None) -> DataTree:
        """Return PyMC's tree of the largest rectangle of chains and draws; an empty tree without any draws.

        The rectangle has the most draws after tuning, or else the most tuning draws.
        """
        lengths = {chain: len(trace) for chain, trace in self._traces.items()}
        left_out = tune if any(length > tune for length in lengths.values()) else 0
        longer = {chain: length for chain, length in lengths.items() if length > left_out}
        if not longer:
            return DataTree()
        found = longer.values()
        best = max(found, key=lambda length: (length - left_out) * sum(other >= length for other in found))
        chains = sorted(chain for chain, length in longer.items() if length >= best)
        tree = _sample_return(
            run=None,
            traces=[self._traces[chain][:best] for chain in chains],
            tune=tune,
            t_sampling=0.0,
            discard_tuned_samples=False,
            compute_convergence_checks=False,
            return_inferencedata=True,
            keep_warning_stat=False,
            idata_kwargs=dict(idata_options or {}),
            model=model,
            quiet=True,
        )
        numbered: DataTree = tree.map_over_datasets(
            lambda group: group.assign_coords(chain=chains) if "chain" in group.dims else group
        )
        return numbered

    def concatenated(self, names: Sequence[str], tune: int, like: xr.Dataset) -> xr.Dataset:
        """Return all draws after tuning of all chains, whose lengths may differ, along the dim ``sample``.

        `names` are the publishable variables; `like` holds some of the draws by chain and draw, with their dims.
        """
        kept = {chain: len(trace) - tune for chain, trace in sorted(self._traces.items()) if len(trace) > tune}
        variables = {
            name: (
                ("sample", *like[name].dims[2:]),
                np.concatenate(
                    [self._traces[chain].get_values(name)[tune : tune + count] for chain, count in kept.items()]
                ),
            )
            for name in names
            if name in like
        }
        coords: dict[str, Any] = {
            **{str(name): coord for name, coord in like.coords.items() if name not in ("chain", "draw")},
            "chain": ("sample", np.repeat(list(kept), list(kept.values()))),
            "draw": ("sample", np.concatenate([np.arange(count) for count in kept.values()])),
        }
        description = "All kept draws of a run that ended early, one chain after the other."
        return xr.Dataset(variables, coords=coords, attrs={"description": description})


def end_of_run(error: BaseException | None, iterations: Sequence[int], tune: int, draws: int) -> dict[str, Any]:
    """Return the metadata of a run's end; of other packages' errors they contain the type alone."""
    complete = all(made == tune + draws for made in iterations)
    facts: dict[str, Any] = {"complete": int(complete)}
    if not complete:
        facts["ended_early_because"] = reason(error)
        facts["tuning_made"] = json.dumps([min(made, tune) for made in iterations])
        facts["draws_made"] = json.dumps([max(0, made - tune) for made in iterations])
    return facts


def reason(error: BaseException | None) -> str:
    """Return the reason of a run's end, without messages of errors that are not this package's: they may hold data."""
    if error is None or isinstance(error, KeyboardInterrupt | Interrupted):
        return "it was interrupted"
    if isinstance(error, EOFError | ConnectionError):
        return "a worker process was killed"
    cause = error.__cause__ if isinstance(error, ParallelSamplingError) and error.__cause__ is not None else error
    if isinstance(cause, PrivacyError):
        return f"{type(cause).__name__}: {cause}"
    where = "in a worker process" if cause is not error else "during the run"
    return f"{type(cause).__name__} was raised {where}"
