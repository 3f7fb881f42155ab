r"""The correction variable of the Barker test, and the probability of its decision.

The Barker test accepts iff :math:`\lambda + V > 0` with V standard logistic. DP Barker knows :math:`\lambda` with
normal error whose variance is filled up to 2, so V has to be split into N(0, 2) and a correction. No such correction
exists: the characteristic function of the logistic, :math:`\pi t / \sinh \pi t`, falls more slowly than
:math:`e^{-t^2}`, and their ratio grows without bound. The best one in the largest error of the distribution function
is a discrete variable on five points (found by linear programming, among all variables on a fine lattice, in
``tests/release/test_barker.py``); with it

.. math:: \sup_x | P(N(0, 2) + V_\text{corr} \le x) - \operatorname{logistic}(x) | = 5.88 \cdot 10^{-4}.

Since mixtures of normals are limits of such variables, none of them does better. The error is one of the sampler:
each decision's probability is off by at most that much. It is none of privacy, which holds for any correction.
"""

import math
from fractions import Fraction

import numpy as np
import scipy

from pymc_dp.release.noise import NoiseSource
from pymc_dp.rows.clipped_sum import ClippedMoments

#: The variance of the normal error and the noise together.
TOTAL_VARIANCE = 2.0
#: Where the correction variable lies, with which probability; the same on the negative side.
POINTS = (0.0, 2.95134169, 9.22013387)
WEIGHTS = (0.86596910717, 0.13179554045, 0.00223535238)
#: The largest error of the distribution function of N(0, 2) + V_corr, as the tests measure it.
LARGEST_ERROR = 5.88e-4


def clip_bound(batch_size: int, tempered_size: float) -> float:
    """Return the bound of a unit's log-ratio that the test prescribes: the variance of a batch's sum is then at most 1.

    `tempered_size` is the number of units that the tempered likelihood stands for.
    """
    return math.sqrt(batch_size) / tempered_size


def log_ratio_and_variance(moments: ClippedMoments, unit: Fraction, offset: float) -> tuple[float, float]:
    """Return λ = unit · Σ k_i + offset of log-ratios k_i in steps, and the variance of the scaled sum; rounded once."""
    total, variance = moments.scaled(unit)
    return float(total + Fraction(offset)), float(variance)


def acceptance(log_ratio: float, variance: float) -> tuple[bool, float]:
    """Return the less likely decision and its probability.

    The probability of λ + N(0, 2 - variance) + V_corr > 0, summed over the points of the correction. The smaller of
    both probabilities is computed, by the symmetry of all noise, so that neither loses relative precision: λ and the
    variance carry one rounding each, the normal distribution function turns a relative error r of its argument z into
    z² r, and below z = -38 it is zero. Together that is a relative error below 2**-37, except for decisions of
    probability below 1e-300.
    """
    std = math.sqrt(TOTAL_VARIANCE - variance)
    distance = -abs(log_ratio)
    points = np.array([-POINTS[2], -POINTS[1], *POINTS])
    weights = np.array([0.5 * WEIGHTS[2], 0.5 * WEIGHTS[1], WEIGHTS[0], 0.5 * WEIGHTS[1], 0.5 * WEIGHTS[2]])
    return log_ratio <= 0.0, float(weights @ scipy.special.ndtr((distance + points) / std))


def happens(entropy: NoiseSource, probability: float) -> bool:
    """Return true with exactly the probability that the float stands for, from as many random bits as that takes."""
    exact = Fraction(probability)
    word, bits = 0, 0
    while True:
        word, bits = (word << 64) | int(entropy.words(1)[0]), bits + 64
        if word + 1 <= exact * 2**bits:
            return True
        if word >= exact * 2**bits:
            return False
