"""Posteriors that samplers of the field are compared on, as PyMC models with data and exact reference draws.

Normal, banana-shaped and circular posteriors of Räisä, Koskela and Honkela (2021, section 4) and of the theses
behind it. All data are simulated; the parameters follow the published experiments.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray

from pymc_dp import _validate

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TestPosterior:
    """A model with simulated data whose posterior can be drawn from exactly.

    Attributes
    ----------
    name : str
        Which one it is.
    model : pm.Model
        Its only free variable is ``theta``, shape (parameters,).
    n_units : int
        Rows of data.
    reference : callable
        ``reference(draws, rng)`` gives exact draws, shape (draws, parameters).
    tempering : float
        The power that the likelihood is written to. A sampler's own ``tempering`` is refused where it is below 1: to
        temper by the sampler, take the posterior without (``"banana-2"`` has the data of ``"banana-tempered-2"``).
    """

    name: str
    model: pm.Model
    n_units: int
    reference: Callable[[int, np.random.Generator], FloatArray]
    tempering: float = 1.0

    __test__ = False  # not a test, whatever pytest thinks of its name


def normal(name: str, covariance: FloatArray, prior_std: float, n_units: int, seed: int = 0) -> TestPosterior:
    """Return the posterior of the mean of normal rows with known covariance."""
    size = len(covariance)
    truth = np.concatenate([[0.0, 3.0], np.zeros(size - 2)])
    data = np.random.default_rng(seed).multivariate_normal(truth, covariance, size=n_units, method="cholesky")
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, prior_std, shape=size)
        pm.MvNormal("y", theta, cov=covariance, observed=data)
    precision = np.linalg.inv(covariance)
    posterior = np.linalg.inv(n_units * precision + np.eye(size) / prior_std**2)
    mean = posterior @ precision @ data.sum(axis=0)

    def reference(draws: int, rng: np.random.Generator) -> FloatArray:
        return rng.multivariate_normal(mean, posterior, size=draws, method="cholesky")

    return TestPosterior(name, model, n_units, reference)


def banana(
    name: str,
    variances: FloatArray,
    bend: float,
    prior_variance: float,
    n_units: int,
    tempered_units: int | None = None,
    seed: int = 0,
) -> TestPosterior:
    """Return a banana-shaped posterior: normal in (theta_1, theta_2 + bend theta_1², theta_3, ...).

    `tempered_units` raises the likelihood to the power tempered_units / n_units: as if there were so many rows.
    """
    temperature = 1.0 if tempered_units is None else _validate.positive("tempered_units", tempered_units) / n_units
    size = len(variances)
    truth = np.concatenate([[0.0, 3.0], np.zeros(size - 2)])
    generator = np.random.default_rng(seed)
    data = truth + generator.normal(size=(n_units, size)) * np.sqrt(variances)  # the bend is 0 where theta_1 is
    std = np.sqrt(prior_variance)
    with pm.Model() as model:
        first = pm.Normal("first", 0.0, std)
        second = pm.Normal("second", -bend * first**2, std)
        parts = [first, second + bend * first**2]
        if size > 2:
            rest = pm.Normal("rest", 0.0, std, shape=size - 2)
            parts += [rest[i] for i in range(size - 2)]
        # A normal density to the power T is one of variance / T, up to a constant.
        pm.Normal("y", pt.stack(parts), np.sqrt(variances / temperature), observed=data)
    precision = n_units * temperature / variances
    mean = precision * data.mean(axis=0) / (precision + 1.0 / prior_variance)
    posterior_std = 1.0 / np.sqrt(precision + 1.0 / prior_variance)

    def reference(draws: int, rng: np.random.Generator) -> FloatArray:
        straight = mean + posterior_std * rng.normal(size=(draws, size))
        straight[:, 1] -= bend * straight[:, 0] ** 2
        return straight

    return TestPosterior(name, model, n_units, reference, temperature)


def circle(name: str = "circle", precision: float = 1e-5, n_units: int = 100_000, seed: int = 0) -> TestPosterior:
    """Return a posterior on a ring: the likelihood depends on theta_1² + theta_2² alone."""
    rows = np.random.default_rng(seed).normal(3.0, 1.0, size=n_units) ** 2
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1e3, shape=2, initval=np.array([0.0, 1.0]))
        pm.Normal("y", (theta**2).sum(), 1.0 / np.sqrt(2.0 * precision), observed=rows)
    centre, std = rows.mean(), 1.0 / np.sqrt(2.0 * precision * n_units)

    def reference(draws: int, rng: np.random.Generator) -> FloatArray:
        squares = centre + std * rng.normal(size=8 * draws)
        radius = np.sqrt(squares[squares > 0.0][:draws])
        angle = rng.uniform(0.0, 2.0 * np.pi, size=radius.size)
        return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])

    return TestPosterior(name, model, n_units, reference)


def published(name: str, seed: int = 0) -> TestPosterior:
    """Return one of the published experiments' posteriors.

    Parameters
    ----------
    name : str
        One of `PUBLISHED`.
    seed : int
        Of the simulated data.

    Raises
    ------
    InvalidArgument
        If there is none of that name.
    """
    _validate.choice("name", name, tuple(PUBLISHED))
    return PUBLISHED[name](name, seed)


def _variances(size: int) -> FloatArray:
    return np.concatenate([[20.0, 2.5], np.ones(size - 2)])


def _covariance_of_ten() -> FloatArray:
    generator = np.random.default_rng(3)
    values = generator.gamma(0.5, 1.0, 10)
    vectors = np.linalg.qr(generator.random((10, 10)))[0]
    covariance: FloatArray = (vectors * values) @ vectors.T
    return covariance


PUBLISHED: dict[str, Callable[[str, int], TestPosterior]] = {
    "normal-2": lambda name, seed: normal(name, np.array([[1.0, 0.999], [0.999, 1.0]]), 10.0, 200_000, seed),
    "normal-10": lambda name, seed: normal(name, _covariance_of_ten(), 100.0, 100_000, seed),
    "normal-30": lambda name, seed: normal(name, np.diag(_variances(30)), np.sqrt(1000.0), 200_000, seed),
    "banana-2": lambda name, seed: banana(name, _variances(2), 20.0, 1000.0, 100_000, seed=seed),
    "banana-10": lambda name, seed: banana(name, _variances(10), 20.0, 1000.0, 200_000, seed=seed),
    "banana-narrow": lambda name, seed: banana(name, _variances(2), 350.0, 1000.0, 150_000, seed=seed),
    "banana-tempered-2": lambda name, seed: banana(name, _variances(2), 20.0, 1000.0, 100_000, 1000, seed),
    "banana-tempered-10": lambda name, seed: banana(name, _variances(10), 20.0, 1000.0, 200_000, 1000, seed),
    "banana-paper": lambda name, seed: banana(name, np.array([2000.0, 2500.0]), 20.0, 1e6, 100_000, seed=seed),
    "circle": lambda name, seed: circle(name, seed=seed),
}
