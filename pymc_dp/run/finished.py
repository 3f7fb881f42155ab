"""How a run ends, and the draws that it has finished by then.

PyMC tells a callback of every draw, in the main process, whether chains run here or in processes of their own, and
hands it the trace that holds the draw. The draws in those traces were paid for: they come back however the run ends.
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
    """Ctrl-C, under a name that PyMC does not catch. It never leaves `pymc_dp.sample`."""


@contextmanager
def ending_the_run() -> Iterator[None]:
    """Raise `Interrupted` at Ctrl-C, in this process and its main thread, where nobody else handles it.

    PyMC would take a KeyboardInterrupt for the end of one chain, and go on with the next. Worker processes get one as
    before: they end quietly. A second Ctrl-C is a KeyboardInterrupt.
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
    """A callback of `pm.sample` that keeps hold of every chain's trace and passes each draw on to the user's callback.

    `callback_failed` says whether the user's has raised, `chains_release` whether chains may release something: PyMC's
    NUTS does not.
    """

    def __init__(self, callback: Callable[..., Any] | None) -> None:
        self._callback = callback
        self._traces: dict[int, BaseTrace] = {}
        self.callback_failed, self.chains_release = False, True

    def __call__(self, trace: BaseTrace, draw: Any) -> None:
        """Note a draw."""
        self._traces[int(draw.chain)] = trace
        if self._callback is None:
            return
        try:
            self._callback(trace=trace, draw=draw)
        except KeyboardInterrupt as interrupt:  # as PyMC documents it, but of the whole run
            raise Interrupted from interrupt
        except BaseException:
            self.callback_failed = True
            raise

    def iterations(self, chains: int) -> list[int]:
        """Return the number of finished iterations, tuning included, of each planned chain."""
        return [len(self._traces[chain]) if chain in self._traces else 0 for chain in range(chains)]

    def releases(self, n_steps: int) -> Iterator[tuple[int, int, int, ReleasesOfIteration]]:
        """Yield chain, iteration and place of the step, with the releases that it made there, in order."""
        for chain in sorted(self._traces) if self.chains_release else ():
            trace = self._traces[chain]
            of_steps = [trace.get_sampler_stats("releases", place) for place in range(n_steps)]
            for iteration in range(len(trace)):
                for place in range(n_steps):
                    yield chain, iteration, place, of_steps[place][iteration]

    def tree(self, model: Model, tune: int, idata_options: Mapping[str, Any] | None) -> DataTree:
        """Return PyMC's tree of the chains and draws that make the largest rectangle; an empty one without any draw.

        The rectangle is that with most draws after tuning, or else of tuning.
        """
        lengths = {chain: len(trace) for chain, trace in self._traces.items()}
        left_out = tune if any(length > tune for length in lengths.values()) else 0
        longer = {chain: length for chain, length in lengths.items() if length > left_out}
        if not longer:
            return DataTree()
        lengths_left = longer.values()
        best = max(
            lengths_left, key=lambda length: (length - left_out) * sum(other >= length for other in lengths_left)
        )
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

    def one_after_the_other(self, names: Sequence[str], tune: int, like: xr.Dataset) -> xr.Dataset:
        """Return every draw of every chain after tuning, however many each has made, along the dim ``sample``.

        `names` are the variables that may leave; `like` holds some of the draws by chain and draw, with their dims.
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


def how_it_ended(error: BaseException | None, iterations: Sequence[int], tune: int, draws: int) -> dict[str, Any]:
    """Return the facts of a run's end, for the result's metadata: in words that hold nothing but types of errors."""
    complete = all(made == tune + draws for made in iterations)
    facts: dict[str, Any] = {"complete": int(complete)}
    if not complete:
        facts["ended_early_because"] = reason(error)
        facts["tuning_made"] = json.dumps([min(made, tune) for made in iterations])
        facts["draws_made"] = json.dumps([max(0, made - tune) for made in iterations])
    return facts


def reason(error: BaseException | None) -> str:
    """Return why a run has ended, without messages of errors that are not this package's own: they may hold data."""
    if error is None or isinstance(error, KeyboardInterrupt | Interrupted):
        return "it was interrupted"
    if isinstance(error, EOFError | ConnectionError):
        return "a worker process was killed"
    cause = error.__cause__ if isinstance(error, ParallelSamplingError) and error.__cause__ is not None else error
    if isinstance(cause, PrivacyError):
        return f"{type(cause).__name__}: {cause}"
    where = "in a worker process" if cause is not error else "during the run"
    return f"{type(cause).__name__} was raised {where}"
