r"""The correction variable of the Barker test, and the probability of its decision.

The Barker test accepts iff :math:`\lambda + V > 0` with V standard logistic. DP Barker has :math:`\lambda` with a
normal error, whose variance is increased to 2, so V has to be the sum of N(0, 2) and an independent correction. No such
correction exists: the characteristic function of the logistic, :math:`\pi t / \sinh \pi t`, falls more slowly than
:math:`e^{-t^2}`, and their ratio is unbounded. The approximate correction with the smallest error of the distribution
function in supremum norm is a discrete variable on five points (found by linear programming, among all variables on a
fine lattice, in ``tests/release/test_barker.py``); with it

.. math:: \sup_x | P(N(0, 2) + V_\text{corr} \le x) - \operatorname{logistic}(x) | = 5.88 \cdot 10^{-4}.

Mixtures of normals are limits of such variables, so none of them has a smaller error. The error affects the sampler:
the probability of each decision is wrong by at most this amount. It does not affect privacy, which holds for any
correction.
"""

import math
from fractions import Fraction

import numpy as np
import scipy

from pymc_dp.release.noise import NoiseSource
from pymc_dp.rows.clipped_sum import ClippedMoments

#: The total variance of the normal error and the noise.
TOTAL_VARIANCE = 2.0
#: Support and probabilities of the correction variable, which is symmetric around zero.
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
    """Return λ = unit · Σ k_i + offset for log-ratios k_i in steps, and the variance of the sum, each rounded once."""
    total, variance = moments.scaled(unit)
    return float(total + Fraction(offset)), float(variance)


def acceptance(log_ratio: float, variance: float) -> tuple[bool, float]:
    """Return the less likely decision and its probability.

    The probability of λ + N(0, 2 - variance) + V_corr > 0 is a sum over the points of the correction. Of the two
    decisions the smaller probability is computed, by the symmetry of all noise, so that neither loses relative
    precision: λ and the variance carry one rounding each, the normal distribution function turns a relative error r of
    its argument z into z² r, and it is zero below z = -38. The total relative error is below 2**-37, except for
    decisions of probability below 1e-300.
    """
    std = math.sqrt(TOTAL_VARIANCE - variance)
    distance = -abs(log_ratio)
    points = np.array([-POINTS[2], -POINTS[1], *POINTS])
    weights = np.array([0.5 * WEIGHTS[2], 0.5 * WEIGHTS[1], WEIGHTS[0], 0.5 * WEIGHTS[1], 0.5 * WEIGHTS[2]])
    return log_ratio <= 0.0, float(weights @ scipy.special.ndtr((distance + points) / std))


def happens(entropy: NoiseSource, probability: float) -> bool:
    """Return true with exactly the probability `probability`, drawing as many random bits as necessary."""
    exact = Fraction(probability)
    word, bits = 0, 0
    while True:
        word, bits = (word << 64) | int(entropy.words(1)[0]), bits + 64
        if word + 1 <= exact * 2**bits:
            return True
        if word >= exact * 2**bits:
            return False
