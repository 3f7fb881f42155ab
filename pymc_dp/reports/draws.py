"""Diagnostics of draws: convergence of chains, effective sample size, widths, and distances between sets of draws."""

import math
from collections.abc import Mapping

import numpy as np
import scipy
import xarray as xr


def maximum_mean_discrepancy(draws: np.ndarray, reference: np.ndarray) -> float:
    """Return the maximum mean discrepancy between two sets of draws: about 0 if they follow the same distribution.

    Gaussian kernel, its width the median distance; the unbiased estimate of the square, zero where that is negative.

    Parameters
    ----------
    draws, reference : ndarray, shape (draws, parameters)
        The numbers of draws may differ.

    References
    ----------
    Gretton and others (2012), A kernel two-sample test, Journal of Machine Learning Research 13, Lemma 6.
    """
    cdist = scipy.spatial.distance.cdist
    width = np.median(cdist(draws[:1000], reference[:1000]))

    def kernel(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        values: np.ndarray = np.exp(-cdist(one, other, "sqeuclidean") / (2.0 * width**2))
        return values

    within = sum((kernel(each, each).sum() - len(each)) / (len(each) * (len(each) - 1)) for each in (draws, reference))
    return math.sqrt(max(0.0, within - 2.0 * kernel(draws, reference).mean()))


def convergence(draws: xr.Dataset, parameters: Mapping[str, int]) -> tuple[float, float, tuple[str, ...]]:
    """Return the largest R-hat and the smallest effective sample size of varying entries, and names of constant parts.

    R-hat is nan if no entry varies. A variable may have constant entries, such as the diagonal of a correlation
    matrix: at least as many entries as its number of unconstrained parameters, `parameters`, have to vary.
    """
    import arviz as az  # noqa: PLC0415  brings in Matplotlib

    entries = {}
    for name in map(str, draws.data_vars):
        values = draws[name].transpose("chain", "draw", ...).values
        entries[name] = np.asarray(values, dtype=np.float64).reshape((*values.shape[:2], -1))
    varies = {name: ~(values == values[:1, :1]).all(axis=(0, 1)) for name, values in entries.items()}
    together = np.concatenate(list(entries.values()), axis=2)
    still = (together == together[:, :1]).all(axis=(1, 2))
    stuck = [f"chain {chain}" for chain in np.flatnonzero(still)]
    stuck += [name for name, moved in varies.items() if moved.sum() < parameters.get(name, 0)]
    different = float(sum(len(np.unique(chain, axis=0)) for chain in together))
    with np.errstate(all="ignore"):  # constant entries divide by zero
        both = az.rhat(draws), az.ess(draws)
    r_hat, size = (
        np.concatenate([np.ravel(found[name].values)[moved] for name, moved in varies.items()]) for found in both
    )
    if not r_hat.size:
        return math.nan, min(1.0, different), tuple(stuck)
    return float(np.max(r_hat)), min(float(np.min(size)), different), tuple(stuck)


def widths(standardised: np.ndarray, effective_draws: float) -> tuple[float, float]:
    """Return the least and the largest standard deviation of standardised draws, corrected for sampling error.

    Eigenvalues of the covariance of N normal draws in k dimensions reach from (1 - sqrt(k / N))² to (1 + sqrt(k / N))².
    """
    values = standardised.reshape(-1, standardised.shape[-1])
    if not np.isfinite(values).all():
        return math.nan, math.inf
    chance = math.sqrt(min(0.8, values.shape[1] / max(1.0, effective_draws)))
    eigenvalues = np.linalg.eigvalsh(np.atleast_2d(np.cov(values.T)))
    least, largest = np.sqrt(np.maximum(eigenvalues[[0, -1]], 0.0))
    return float(least / (1.0 - chance)), float(largest / (1.0 + chance))
