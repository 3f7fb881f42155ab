"""The curator: it holds the rows, and is the only caller of the row engine.

A privacy review has to read `MeteredCurator.release`, through which every value leaves that depends on the rows: it
pays for a query, evaluates the exact sum, and adds noise in proportion to the query's sensitivity. The queries and
their sensitivities are defined in `pymc_dp.release.queries`, the noise in `pymc_dp.release.noise`.
"""

import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pymc_dp.accounting import NO_NOISE, Releases
from pymc_dp.exceptions import NoPlan, PrivacyError
from pymc_dp.release.barker_correction import acceptance, happens, log_ratio_and_variance
from pymc_dp.release.batches import COUNT_WEIGHT, drawn
from pymc_dp.release.interface import Release
from pymc_dp.release.levels import LevelCounts
from pymc_dp.release.meter import BatchCounts, ClipTally, Meter
from pymc_dp.release.noise import NoiseSource, grid_for, grid_without_noise
from pymc_dp.release.queries import BarkerDecision, plain
from pymc_dp.release.query import Evaluation, IntArray, PublicFacts, Query, Rows
from pymc_dp.rows.levels import UnitLevels


class MeteredCurator:
    """The curator of one chain.

    Parameters
    ----------
    rows : UnitLikelihood, PartitionedUnits or UnitLevels
        The row engine; or the levels of columns.
    noise : NoiseSource
        The source of the noise.
    relation : {"substitute", "add-remove"}
        The neighbouring relation.
    paid : sequence of Releases
        The releases that were paid for; for these and `without_noise` see `pymc_dp.release.meter.Meter`.
    exact_counts : bool
        Whether to return exact clip counts. For public or simulated data only.
    """

    def __init__(
        self,
        rows: Rows | UnitLevels,
        noise: NoiseSource,
        relation: str,
        paid: Sequence[Releases],
        *,
        exact_counts: bool = False,
        without_noise: bool = False,
    ) -> None:
        self._rows = rows
        self._noise = noise
        self._process, self._one_at_a_time = os.getpid(), threading.Lock()
        self._meter = Meter(paid, without_noise=without_noise)
        self._exact_counts = exact_counts
        self._tally = ClipTally(event.kind for event in paid if event.kind != "clip_count")
        # Under add-remove the number of units is protected.
        n_public = rows.n_units if relation == "substitute" else None
        self._facts = PublicFacts(relation, n_public, len(self._tally))
        on_batches = any(event.sampling is not None for event in paid)
        self._batch_counts = BatchCounts(1 if relation == "substitute" else 2) if on_batches else None

    def release(self, query: Query, noise_multiplier: float = 0.0) -> Release:
        """Answer a query: pay for it, evaluate it, add noise. See `pymc_dp.steps.access.Curator`."""
        if os.getpid() != self._process:  # a fork would have a copy of the meter, and release everything twice
            raise PrivacyError("A run goes on in another process than it began in: what it was paid for is used there.")
        query, noise_multiplier = plain(query), float(noise_multiplier)
        with self._one_at_a_time:  # two threads could both use the last release that was paid for
            return self._released(query, noise_multiplier)

    def _released(self, query: Query, noise_multiplier: float) -> Release:
        query.refuse_if_unsafe(self._facts)
        delta = query.delta if isinstance(query, LevelCounts) else 0.0
        self._meter.spend(query.kind, noise_multiplier, query.sampled, adds_noise=query.adds_noise, delta=delta)
        # A warning would reveal that a computation on rows overflows or is undefined.
        with np.errstate(all="ignore"):
            if isinstance(query, BarkerDecision):
                return self._decided(query)
            if isinstance(query, LevelCounts):
                return self._above_threshold(query, noise_multiplier)
            return self._noised(query, noise_multiplier)

    def _noised(self, query: Query, noise_multiplier: float) -> Release:
        """Return the exact sum with noise, with counts of clipped units as further entries if they are requested."""
        bound, batches, counts = query.bound(self._facts), query.sampled, self._batch_counts
        silent, grid = self._grid(query, noise_multiplier)
        sensitivity = query.factor(self._facts) * bound + query.rounding(self._facts) * grid
        on = self._evaluation(query, grid)
        exact = query.exact_sum(on)
        if not exact.bound <= bound or exact.grid != grid:
            raise PrivacyError(f"The sum for a release of kind {query.kind!r} was not clipped as the query says.")
        noisy, size, weight = exact.integers, exact.integers.size, 0
        if batches is None:  # a batch is used for one release, so its clipped units are not tallied for a later one
            self._tally.add(query.kind, exact.n_clipped)
        elif counts is not None and on.batch is not None:
            of_batch = np.array([exact.n_clipped, on.batch.size], dtype=np.int64)
            if query.counted:
                # See `pymc_dp.release.meter`: the weight of an indicator, in steps of the grid, rounded down.
                weight = math.floor(COUNT_WEIGHT * (sensitivity / batches.sensitivity_factor) / grid)
                noisy = np.concatenate([noisy, weight * of_batch[: counts.entries]])
                sensitivity *= batches.count_factor if weight else 1.0
            elif self._exact_counts:
                counts.add(of_batch, 0.0, batches.scale)
        noise_std = noise_multiplier * sensitivity
        if not 0.0 < noise_std < math.inf:
            raise PrivacyError(f"A release of kind {query.kind!r} would carry noise of standard deviation {noise_std}.")
        noisy = self._with_noise(noisy, noise_std, grid, silent=silent)
        if weight and batches is not None and counts is not None:
            counts.add(noisy[size:] / weight, noise_std / (weight * grid), batches.scale)
        value = query.published(np.asarray(noisy[:size] * grid, dtype=np.float64), self._facts)
        return Release(query.kind, value, noise_std, query.where)

    def _grid(self, query: Query, noise_multiplier: float) -> tuple[bool, float]:
        """Return whether an answer has no noise, and the grid of its exact sum."""
        bound, factor = query.bound(self._facts), query.factor(self._facts)
        if self._meter.without_noise and noise_multiplier <= NO_NOISE:
            return True, grid_without_noise(bound, self._rows.n_units)
        return False, grid_for(noise_multiplier, factor, noise_multiplier * factor * bound, query.n_terms(self._facts))

    def _with_noise(self, noisy: IntArray, noise_std: float, grid: float, *, silent: bool) -> IntArray:
        """Return multiples of the grid with noise, or unchanged if `silent`."""
        if not silent:
            noisy = self._noise.add(noisy, noise_std / grid)
        return noisy

    def _above_threshold(self, query: LevelCounts, noise_multiplier: float) -> Release:
        """Return the noisy counts that are above the threshold, with their levels, the largest first.

        Nothing else that depends on the set of levels that occur leaves: neither their number nor an error.
        """
        if not isinstance(self._rows, UnitLevels):
            raise PrivacyError("Levels are asked of columns, not of a model's rows.")
        noise_std = noise_multiplier * query.factor(self._facts) * query.bound(self._facts)
        silent, grid = self._grid(query, noise_multiplier)
        if grid > 1.0:
            raise PrivacyError("So much noise has a grid on which there are no counts.")
        counts = [(name, level, n) for name in query.columns for level, n in sorted(self._rows.counts[name].items())]
        noisy = np.array([n * round(1.0 / grid) for *_, n in counts], dtype=np.int64)
        noisy = self._with_noise(noisy, noise_std, grid, silent=silent)
        values, threshold = (noisy * grid).tolist(), query.threshold(noise_std, grid)
        above = sorted((-n, name, level) for n, (name, level, _) in zip(values, counts, strict=True) if n > threshold)
        counted = np.array([-n for n, *_ in above], dtype=np.float64)
        return Release(query.kind, counted, noise_std, (), tuple((name, level) for _, name, level in above))

    def _decided(self, query: BarkerDecision) -> Release:
        """Return the decision of the Barker test, drawn with exactly the computed probability."""
        on = self._evaluation(query, math.nan)
        moments, step = query.log_ratios(on)
        if self._exact_counts and self._batch_counts is not None and on.batch is not None:
            self._batch_counts.add(np.array([moments.n_clipped, on.batch.size]), 0.0, query.batches.scale)
        unlikely, probability = acceptance(*log_ratio_and_variance(moments, step, query.log_free_ratio))
        accepted = happens(self._noise, probability) == unlikely
        return Release(query.kind, np.array([float(accepted)]), math.nan, query.where)

    def _evaluation(self, query: Query, grid: float) -> Evaluation:
        """Return the arguments of a query's evaluation: all units or a fresh batch, tally, facts and grid."""
        if isinstance(self._rows, UnitLevels):
            raise PrivacyError("Of columns whose levels nobody has listed, levels alone are asked.")
        batch = None if query.sampled is None else drawn(query.sampled, self._noise, self._rows.n_units)
        return Evaluation(self._rows, self._tally, self._facts, grid, batch)

    def tallied(self) -> Release:
        """Return clip counts at no privacy cost. See `pymc_dp.steps.access.Curator`."""
        if self._batch_counts is not None:
            return self._batch_counts.taken()
        if not self._exact_counts:
            raise PrivacyError("Clip counts of all units are released with noise: ask for ClipCounts().")
        counts, releases = self._tally.taken(self._rows.n_units if self._facts.n_units is None else None)
        return Release("clip_count", np.array(counts, dtype=np.float64) / releases, 0.0, ())

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse copies and pickles: a copy could make the releases a second time that were paid for once."""
        raise TypeError("The curator of a chain cannot be copied or pickled: what it may release was paid for once.")

    def __repr__(self) -> str:
        return f"MeteredCurator({self._meter!r})"


class Curators:
    """Opens the curators of one run that has been charged.

    PyMC restores a step's state between chains and copies it into workers, so the state must not hold counts of
    releases. Chains claim their curator by creating a file, which only one process can do for each name, in a folder
    that exists during the run.

    `make_curator`, which has to be picklable, makes a curator from ``noise=``, its source of noise, and ``paid=``, the
    releases that were paid for. At most `chains` curators are opened with the releases `in_chain`, and one with the
    releases `once`, made before the chains start. The releases of one curator cannot be made by another.
    """

    def __init__(
        self,
        make_curator: Callable[..., MeteredCurator],
        noise: NoiseSource,
        chains: int,
        in_chain: Sequence[Releases],
        once: Sequence[Releases] = (),
    ) -> None:
        self._make_curator = make_curator
        self._noise = noise
        self._chains = chains
        self._in_chain, self._once = tuple(in_chain), tuple(once)
        self._folder = Path(tempfile.mkdtemp(prefix="pymc_dp-run-"))

    def open(self, key: tuple[int, ...]) -> MeteredCurator:
        """Return the curator of the next chain, with the noise stream of `key` (if the noise is seeded).

        Raises `NoPlan` if all planned chains have started, or the run is over.
        """
        for chain in range(self._chains):
            if self._claim(f"chain-{chain}"):
                return self._make_curator(noise=self._noise.for_chain(key), paid=self._in_chain)
        raise NoPlan(
            f"All {self._chains} chains that were paid for have started; one more would not be covered. "
            "Call pm.sample with the number of chains you need."
        )

    def open_once(self) -> MeteredCurator:
        """Return the curator of the releases before the chains start.

        Raises `NoPlan` if it has been opened before, or the run is over.
        """
        if not self._claim("once"):
            raise NoPlan("What this run releases before its chains has been released.")
        # The key of no chain begins with such a large number.
        return self._make_curator(noise=self._noise.for_chain((2**32 - 1,)), paid=self._once)

    def _claim(self, name: str) -> bool:
        """Create a file; return False if it exists already."""
        try:
            os.close(os.open(self._folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        except FileNotFoundError:
            raise NoPlan("The run that was paid for is over. Call pm.sample again to plan a new one.") from None
        return True

    def close(self) -> None:
        """End the run: no copy of this object can open a curator any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        return f"Curators(chains={self._chains})"
