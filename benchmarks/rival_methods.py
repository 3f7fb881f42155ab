"""Published private regressions that `rivals.py` compares: each returns an estimate and 90 % intervals.

All protect the replacement of one row. Gaussian noise is accounted for by `pymc_dp.accounting.gaussian_rho`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from pymc_dp.accounting import gaussian_rho

DELTA = 1e-6
REPLICATES = 400
#: Parts of the budget that are spent on intervals.
FOR_INTERVALS = {"gradient": 0.1, "erm-intervals": 0.2, "adassp": 0.1}


@dataclass(frozen=True, eq=False)
class Found:
    """An estimate, and 90 % intervals where the method has them."""

    estimate: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    verdict: str = ""


@dataclass(frozen=True, eq=False)
class Seen:
    """A table as rivals see it; coefficients of the original table are ``back @ theta + shift``."""

    family: str
    x: np.ndarray
    y: np.ndarray
    back: np.ndarray
    shift: np.ndarray

    def clipped(self, bound: float) -> np.ndarray:
        """Return the rows, scaled to be no longer than `bound`."""
        return self.x * np.minimum(1.0, bound / np.linalg.norm(self.x, axis=1))[:, None]

    def found(self, theta: np.ndarray, moved: np.ndarray | None = None) -> Found:
        """Return estimate and intervals; `moved` are replicates less the value that they are made with."""
        estimate = self.back @ theta + self.shift
        if moved is None:
            return Found(estimate)
        low, high = np.quantile(moved @ self.back.T, [0.05, 0.95], axis=0)
        return Found(estimate, estimate - high, estimate - low)


# Parts ----------------------------------------------------------------------------------------------------------------


def gaussian_std(sensitivity, rho):
    return sensitivity / np.sqrt(2.0 * rho)


def symmetric(generator, size, std, shape=()):
    """Return symmetric noise whose entries on and above the diagonal are independent."""
    noise = np.triu(std * generator.standard_normal((*shape, size, size)))
    return noise + np.swapaxes(np.triu(noise, 1), -1, -2)


def raised(matrix, floor, ceiling=np.inf):
    """Return the matrix with its eigenvalues between `floor` and `ceiling`."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.clip(values, floor, ceiling)) @ vectors.T


def second_moment(rows, largest, rho, generator):
    """Release Σ v vᵀ over rows with ‖v‖² ≤ `largest`: two such matrices are at most √2 `largest` apart."""
    std, size = gaussian_std(np.sqrt(2.0) * largest, rho), rows.shape[1]
    return raised(rows.T @ rows + symmetric(generator, size, std), std * np.sqrt(size))


def fitted(x, y, ridge=0.0, tilt=0.0, tolerance=1e-8):
    """Return the minimum of the logistic loss + ridge ‖θ‖² / 2 + tilt · θ, to a gradient of norm `tolerance`."""

    def loss(theta):
        mean = x @ theta
        return np.sum(np.logaddexp(0.0, mean) - y * mean) + 0.5 * ridge * theta @ theta + np.sum(tilt * theta)

    theta = np.zeros(x.shape[1])
    for _ in range(200):
        p = expit(x @ theta)
        gradient = x.T @ (p - y) + ridge * theta + tilt
        if np.linalg.norm(gradient) <= tolerance:
            return theta
        curvature = (x * (p * (1.0 - p))[:, None]).T @ x + ridge * np.eye(len(theta))
        step, part, before = np.linalg.solve(curvature, gradient), 1.0, loss(theta)
        while part > 1e-6 and not loss(theta - part * step) <= before + 1e-12 * abs(before):
            part /= 2.0
        theta = theta - part * step
    raise ArithmeticError(f"the gradient's norm is {np.linalg.norm(gradient):.2g}")


# Methods --------------------------------------------------------------------------------------------------------------

#: Steps, and their lengths in parts of one over the number of coefficients and the largest slope.
STEPS = {30: (3.0, 8.0, 20.0), 100: (3.0, 8.0, 20.0), 300: (1.0, 3.0, 8.0, 20.0), 1000: (20.0,)}
GRADIENT_SETTINGS = [
    {"steps": steps, "rate": rate, "bound": bound}
    for steps, rates in STEPS.items()
    for rate in rates
    for bound in (0.3, 0.6, 1.2, 2.5)
]


def gradient(seen: Seen, epsilon: float, generator, setting: dict, intervals: bool) -> Found:
    """Descend along noisy sums of clipped gradients of all rows; return the mean of the last half of the steps.

    Noisy gradient descent (Song, Chaudhuri and Sarwate 2013; Bassily, Smith and Thakurta 2014) with all rows in each
    step. For intervals the curvature of the clipped loss and the second moment of the clipped gradients are released,
    and the descent is repeated on that quadratic: sampling error and the noise of every step. What is left of the way
    from zero is not in them.
    """
    n, size = seen.x.shape
    rho = gaussian_rho(epsilon, DELTA)
    later = FOR_INTERVALS["gradient"] * rho / 2.0
    norms = np.linalg.norm(seen.x, axis=1)
    slope = 0.25 if seen.family == "logistic" else 1.0  # of the residual
    bound = setting["bound"] * np.sqrt(size)
    steps, rate = setting["steps"], setting["rate"] / (slope * size * n)
    std = gaussian_std(2.0 * bound, (rho - 2.0 * later) / steps)

    def residuals(theta):
        mean = np.clip(seen.x @ theta, -1e9, 1e9)
        whole = (expit(mean) if seen.family == "logistic" else mean) - seen.y
        return mean, whole, np.minimum(1.0, bound / np.maximum(np.abs(whole) * norms, 1e-300))

    theta, total = np.zeros(size), np.zeros(size)
    for step in range(steps):
        _, whole, part = residuals(theta)
        theta = theta - rate * ((part * whole) @ seen.x + std * generator.standard_normal(size))
        total += theta if step >= steps // 2 else 0.0
    theta = total / (steps - steps // 2)
    if not intervals:
        return seen.found(theta)

    mean, whole, part = residuals(theta)
    weights = expit(mean) * expit(-mean) if seen.family == "logistic" else 1.0
    longest = 1.5 * np.sqrt(size)
    rows = seen.clipped(longest) * np.sqrt(weights * (part == 1.0))[:, None]
    bend = raised(second_moment(rows, slope * longest**2, later, generator), 0.0, 1.99 / rate)
    spread = second_moment(seen.x * (part * whole)[:, None], bound**2, later, generator)
    sampled = generator.standard_normal((REPLICATES, size)) @ np.linalg.cholesky(spread).T
    at, total = np.zeros((REPLICATES, size)), np.zeros((REPLICATES, size))
    for step in range(steps):
        at = at - rate * (at @ bend + sampled + std * generator.standard_normal((REPLICATES, size)))
        total += at if step >= steps // 2 else 0.0
    return seen.found(theta, total / (steps - steps // 2))


OBJECTIVE_SETTINGS = [
    {"bound": bound, "part": part} for bound in (0.5, 0.8, 1.3, 2.0, 3.0, 4.5) for part in (0.01, 0.03, 0.1, 0.3)
]


def perturbed_objective(seen: Seen, epsilon: float, delta: float, generator, setting: dict):
    """Return the minimum of a logistic loss with a random linear term, the bound, the ridge and the noise's deviation.

    Approximate minima perturbation (Iyengar and others 2019) after Kifer, Smith and Thakurta (2012). Rows have norm B
    at most: two gradients are at most 2 B apart, and a row bends the loss by B² / 4 at most. With ridge Λ the
    Jacobian costs log(1 + B² / (4 Λ)) of epsilon: one row leaves, another comes. The two gradients are in a plane that
    is known beforehand, where noise is beyond t deviations with probability exp(-t² / 2) = delta. Elsewhere the privacy
    loss is at most a t + a² / 2 with a = 2 B / deviation. A hundredth of the budget covers that the minimum is
    approximate.
    """
    size = seen.x.shape[1]
    bound, tolerance = setting["bound"] * np.sqrt(size), 1e-8
    for_tolerance, epsilon, delta = gaussian_rho(0.01 * epsilon, 0.01 * delta), 0.99 * epsilon, 0.99 * delta
    ridge = bound**2 / 4.0 / np.expm1(setting["part"] * epsilon)
    t = np.sqrt(-2.0 * np.log(delta))
    std = 2.0 * bound / (np.sqrt(t**2 + 2.0 * (1.0 - setting["part"]) * epsilon) - t)
    theta = fitted(seen.clipped(bound), seen.y, ridge, std * generator.standard_normal(size), tolerance)
    theta = theta + gaussian_std(2.0 * tolerance / ridge, for_tolerance) * generator.standard_normal(size)
    return theta, bound, ridge, std


def objective(seen: Seen, epsilon: float, generator, setting: dict, intervals: bool) -> Found:
    """Perturb the objective with the whole budget: there are no intervals."""
    return seen.found(perturbed_objective(seen, epsilon, DELTA, generator, setting)[0])


def erm_intervals(seen: Seen, epsilon: float, generator, setting: dict, intervals: bool) -> Found:
    """Perturb the objective, and release curvature and second moment of gradients for a sandwich with the noise in it.

    After Wang, Kifer and Lee (2019), with Gaussian noise and the clipped rows of the perturbed objective.
    """
    share = FOR_INTERVALS["erm-intervals"]
    theta, bound, ridge, std = perturbed_objective(seen, (1.0 - share) * epsilon, DELTA / 2.0, generator, setting)
    rho, x, identity = gaussian_rho(share * epsilon, DELTA / 2.0) / 2.0, seen.clipped(bound), np.eye(len(theta))
    p = expit(x @ theta)
    bend = second_moment(x * np.sqrt(p * (1.0 - p))[:, None], bound**2 / 4.0, rho, generator) + ridge * identity
    spread = second_moment(x * (seen.y - p)[:, None], bound**2, rho, generator) + std**2 * identity
    moved = generator.standard_normal((REPLICATES, len(theta))) @ np.linalg.cholesky(spread).T
    return seen.found(theta, np.linalg.solve(bend, moved.T).T)


ADASSP_SETTINGS = [
    {"bound": bound, "reach": reach}
    for bound in (0.5, 0.8, 1.0, 1.3, 1.6, 2.0, 3.0)
    for reach in (1.0, 1.5, 2.0, 3.0, 4.0)
]


def adassp(seen: Seen, epsilon: float, generator, setting: dict, intervals: bool) -> Found:
    """Release XᵀX, Xᵀy and the least eigenvalue, and add the ridge that the noise asks for (AdaSSP: Wang 2018).

    Noise is for the replacement of a row. Intervals are by parametric bootstrap (Ferrando, Wang and Sheldon 2022): the
    sums that new responses would have are drawn from the released ones, and the whole mechanism with its noise is
    applied to them. The variance that this needs is from a released sum of squared responses.
    """
    n, size = seen.x.shape
    rho = gaussian_rho(epsilon, DELTA)
    later = FOR_INTERVALS["adassp"] * rho
    each, bound, reach = (rho - later) / 3.0, setting["bound"] * np.sqrt(size), setting["reach"]
    x, y = seen.clipped(bound), np.clip(seen.y, -reach, reach)
    of_square, of_product = gaussian_std(np.sqrt(2.0) * bound**2, each), gaussian_std(2.0 * bound * reach, each)
    of_least = gaussian_std(bound**2, each)
    wanted = of_square * np.sqrt(size * np.log(2.0 * size**2 / 0.05))

    def estimated(moment, product, shape=()):
        """Return coefficients, and the noisy sums that they are computed from."""
        least = np.linalg.eigvalsh(moment)[0] + of_least * (generator.standard_normal(shape) - np.sqrt(2 * np.log(20)))
        ridge = np.maximum(0.0, wanted - np.maximum(least, 0.0))[..., None, None] * np.eye(size)
        noisy = moment + symmetric(generator, size, of_square, shape)
        to = product + of_product * generator.standard_normal((*shape, size))
        return np.linalg.solve(noisy + ridge, to[..., None])[..., 0], noisy, to

    theta, noisy, to = estimated(x.T @ x, x.T @ y)
    if not intervals:
        return seen.found(theta)
    squares = np.sum(y**2) + gaussian_std(reach**2, later) * generator.standard_normal()
    variance = np.clip((squares - 2.0 * theta @ to + theta @ noisy @ theta) / n, 1e-4, reach**2)
    proper = raised(noisy, of_square)
    drawn = np.sqrt(variance) * generator.standard_normal((REPLICATES, size)) @ np.linalg.cholesky(proper).T
    return seen.found(theta, estimated(proper, proper @ theta + drawn, (REPLICATES,))[0] - theta)


@dataclass(frozen=True)
class Rival:
    """A method, the settings to try, the method whose pilots choose one, and the kinds of tables it is for."""

    find: Callable[..., Found]
    settings: list[dict]
    tuned_as: str
    families: tuple[str, ...]


RIVALS = {
    "gradient": Rival(gradient, GRADIENT_SETTINGS, "gradient", ("logistic", "linear")),
    "objective": Rival(objective, OBJECTIVE_SETTINGS, "objective", ("logistic",)),
    "erm-intervals": Rival(erm_intervals, OBJECTIVE_SETTINGS, "objective", ("logistic",)),
    "adassp": Rival(adassp, ADASSP_SETTINGS, "adassp", ("linear",)),
}
