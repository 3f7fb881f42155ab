"""The only module that draws privacy noise: an exact discrete Gaussian on a public grid, and random bits for batches.

A continuous Gaussian drawn in floating point leaks information by its rounding (Mironov 2012). Here clipped sums are
exact integer multiples of a grid that is about 2**40 times finer than the noise, and the noise is OpenDP's exact
discrete Gaussian (Canonne, Kamath and Steinke 2020), drawn from the operating system's entropy.
"""

import functools
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_dp.accounting import NO_NOISE
from pymc_dp.exceptions import BudgetExceeded

IntArray = NDArray[np.int64]
Words = NDArray[np.uint64]

#: Key of the seeded stream of batches, which differs from that of noise.
_OF_BATCHES = 0xBA7C4
_FINEST_BITS = 40
_COARSEST_BITS = 35
_CAPACITY_BITS = 62  # a sum stays below 2**62, which leaves int64 room for noise of 2**41 standard deviations / grid


def grid_for(noise_multiplier: float, sensitivity_factor: float, noise_std: float, n_units: int | None) -> float:
    """Return the grid: a power of two between 2**-35 and 2**-41 times the standard deviation of the noise.

    Parameters
    ----------
    noise_multiplier, noise_std : float
        The standard deviation of the noise, relative to the sensitivity and absolute.
    sensitivity_factor : float
        The sensitivity divided by the clip bound: 2 for substitution, 1 for adding or removing a unit.
    n_units : int or None
        The number of units if it is public; None: the grid does not depend on it.

    Raises
    ------
    BudgetExceeded
        If a sum over `n_units` units could overflow 64 bits: the noise is too small for so many units.
    """
    bits = _FINEST_BITS if n_units is not None else _COARSEST_BITS
    if n_units is not None:
        # n (bound / grid) < 2**62, with bound / grid <= 2**(bits + 1) / (factor * multiplier)
        room = 2.0 ** (_CAPACITY_BITS - 1) * sensitivity_factor * noise_multiplier / n_units
        bits = min(bits, math.floor(math.log2(room)))
        if bits < _COARSEST_BITS:
            raise BudgetExceeded(
                f"A noise multiplier of {noise_multiplier:.3g} over so many units does not fit exact 64-bit "
                "sums. Spend less at once: more draws or chains, a smaller budget_share or a smaller epsilon."
            )
    return math.ldexp(1.0, math.frexp(noise_std)[1] - 1 - bits)


def grid_without_noise(bound: float, n_units: int) -> float:
    """Return the grid of an exact sum that is released without noise: a sum over the units fits 64 bits.

    For budgets of infinite epsilon only, which protect neither the rows nor their number.
    """
    bits = min(_FINEST_BITS, _CAPACITY_BITS - 2 - n_units.bit_length())
    return math.ldexp(1.0, math.frexp(bound)[1] - bits)


def refuse_overflow(noise_multipliers: Iterable[float], n_units: int) -> None:
    """Refuse a plan whose exact sums might not fit 64 bits, before it is charged, as `grid_for` does.

    This is the only place that examines a protected number of units: tables of more than 67 million units times the
    noise multiplier are refused under both neighbouring relations.
    """
    for noise_multiplier in noise_multipliers:
        if noise_multiplier <= NO_NOISE:
            continue  # infinite epsilon only: see `grid_without_noise`
        grid_for(noise_multiplier, 1.0, 1.0, max(n_units, 1))  # a fold may have no unit


@functools.lru_cache(maxsize=64)
def _gaussian(scale: float, size: int) -> Any:
    """Build OpenDP's mechanism on 64-bit integers; its `int` has 32 bits."""
    import opendp.prelude as opendp  # noqa: PLC0415  brings in Polars

    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T="i64"), size), opendp.l2_distance(T="f64")
    return opendp.m.make_gaussian(*space, scale=scale)


def warm_up() -> None:
    """Load OpenDP before a run is charged and processes are forked: if loading fails, nothing has been spent."""
    _gaussian(1.0, 1)


class SecureNoise:
    """OpenDP's exact discrete Gaussian, from the operating system's entropy. No seed determines it."""

    def add(self, integers: IntArray, scale: float) -> IntArray:
        """Return `integers` plus exact discrete Gaussian noise of parameter `scale` in every entry."""
        return np.array(_gaussian(scale, integers.size)(integers.tolist()), dtype=np.int64)

    def words(self, count: int) -> Words:
        """Return independent uniform 64-bit words from the operating system, for drawing batches and decisions."""
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)

    def for_chain(self, key: tuple[int, ...]) -> "SecureNoise":
        """Return itself: every draw uses fresh entropy."""
        return self


class InsecureNoise:
    """Reproducible noise for tests and simulated data. It gives no privacy: with the seed it can be removed."""

    def __init__(self, seed: int | Sequence[int], key: tuple[int, ...] = ()) -> None:
        self._seed = seed
        self._generator = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=key))
        of_batches = np.random.SeedSequence(entropy=seed, spawn_key=(*key, _OF_BATCHES))
        self._words = np.random.default_rng(of_batches)

    def add(self, integers: IntArray, scale: float) -> IntArray:
        """Return `integers` plus rounded pseudo-random Gaussian noise."""
        noise = np.rint(self._generator.normal(scale=scale, size=integers.size))
        return integers + noise.astype(np.int64)

    def words(self, count: int) -> Words:
        """Return reproducible 64-bit words."""
        return self._words.integers(0, 2**64, size=count, dtype=np.uint64)

    def for_chain(self, key: tuple[int, ...]) -> "InsecureNoise":
        """Return the noise stream of one chain; chains never share noise."""
        return InsecureNoise(self._seed, key)


#: Sources of noise, and of the random bits of batches and decisions.
NoiseSource = SecureNoise | InsecureNoise
