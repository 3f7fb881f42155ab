"""The division of the prelude's cost, and the constants of the search with their reasons.

Chosen on simulated regressions and on the tables named in docs/control_variates.md. Most were frozen before other
tables were run. The floors of expected curvatures, the limit of the doubtful width and the late curvature were changed
after the kept tables had been run, so that figures on those are not independent of them.
"""

from dataclasses import dataclass

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument


@dataclass(frozen=True)
class Shares:
    """The parts of the cost, which add up to 1.

    Attributes
    ----------
    centre : float
        The search for the centre: scales, early curvatures, scores before the centre.
    score : float
        The score at the centre.
    curvature : float
        The curvature at the centre.
    tests : float
        Residual log-ratios: 0 for draws without a test.
    """

    centre: float
    score: float
    curvature: float
    tests: float

    def __post_init__(self) -> None:
        for name in ("centre", "score"):
            _validate.open_unit_interval(f"shares.{name}", getattr(self, name))
        for name in ("curvature", "tests"):
            _validate.not_negative(f"shares.{name}", getattr(self, name))
        if abs(self.centre + self.score + self.curvature + self.tests - 1.0) > 1e-9:
            raise InvalidArgument("shares have to add up to 1.")


@dataclass(frozen=True)
class PartsOfSearch:
    """Parts of the search's cost, in proportion: they need not add up to 1."""

    #: Each binary search for the logarithm of a positive parameter.
    bisection: float = 0.024
    #: The histograms of scores by parameter; the direction in which predictors rise; each histogram of norms; and each
    #: histogram of curvature norms for growth, which most units determine.
    coordinates: float = 0.025
    rise: float = 0.01
    sizes: float = 0.006
    growth: float = 0.003
    #: The curvature at the start of the search, after the first step, and after the second; with a scale of continuous
    #: responses the third comes before the last step, as a curvature is soon outdated.
    early: float = 0.03
    middle: float = 0.04
    late: float = 0.06
    #: One score on the path to the centre, and the last one before it.
    approach: float = 0.04
    centre: float = 0.17
    #: All histograms and scores of single scales and shapes, at the centre.
    scale_sizes: float = 0.08
    scale: float = 0.15
    #: For a scale estimated apart from the location: its score with a wider bound, and one on the path.
    wide_scale: float = 0.0
    scale_approach: float = 0.0
    #: The number of rows, for units of several rows.
    rows: float = 0.0
    #: A score at a distance from the centre, for piecewise linear log-likelihoods.
    way_off: float = 0.06


#: Nearly collinear directions appear in the third curvature, since each is released along axes that the previous ones
#: whiten. With an intercept 25 sigma from the prior's, 12 of 12 runs at epsilon 4 were lost without it.
PARTS = PartsOfSearch()
#: Of a normal regression the information of the location is released before any score. Twice its share, and one
#: step less, was as good at epsilon 4 and 6 % worse at 1, on twelve tables.
#:
#: Noise raises the eigenvalue of a nearly collinear direction, as of groups and a covariate far from zero, by a smaller
#: factor in each release: of 3, 4 and 5 releases at the same cost 4 was the best or next to it on six tables.
PARTS_OF_LOCATION = PartsOfSearch(
    bisection=0.012,
    early=0.02,
    middle=0.035,
    late=0.07,
    approach=0.025,
    centre=0.08,
    scale=0.065,
    wide_scale=0.05,
    scale_approach=0.006,
    rows=0.01,
)
#: Continuous responses have twice as many scores before the centre. (Piecewise linear log-likelihoods need the usual
#: share: an upper tenth is estimated less well with half.)
PARTS_OF_CONTINUOUS = PartsOfSearch(approach=0.02)
MIDDLE_OF_LOCATION = 2
#: With rows simulated from the model, curvatures before the centre cost nothing, and a mixture needs many short steps:
#: of 24 searches each at epsilon 4, 12 steps lost 2 and 4 on two tables, 16 one or none.
PARTS_BY_SIMULATION = PartsOfSearch(approach=0.01)
SHARES_BY_SIMULATION = Shares(centre=0.45, score=0.49, curvature=0.06, tests=0.0)
SHARES_OF_LOCATION = Shares(centre=0.69, score=0.29, curvature=0.02, tests=0.0)
#: The least number of steps before the third curvature. Without known responses it waits until the trust region
#: shortens no step, as far from the mode it would soon be outdated. Of ten searches each of a gamma regression with a
#: distant maximum 2 were lost at epsilon 1 without waiting. Expected curvatures gained nothing by it.
STEPS_BEFORE_LATE = 2
#: Steps before the last score at the centre.
STEPS = 4
#: The same of continuous responses, except for the location of a normal regression. The curvature changes between
#: points, so that steps are short: of 40 searches each of an exponential, a Gumbel and a Weibull regression at epsilon
#: 4, four longer steps had a root mean square error of .79, 1.5 and .96, eight .49, .67 and .86. Scores of piecewise
#: linear log-likelihoods hardly decrease before the maximum is near.
STEPS_OF_CONTINUOUS = 8
STEPS_BY_SIMULATION = 16
#: The number of first steps that move the location of normal rows alone, each followed by binary searches for their
#: scales: the first covers most of the distance from 0, the second the remainder. Regressions have this many additional
#: steps, and their binary searches cost this factor more: of 24 searches each of a mean that is a standard deviation or
#: two from 0 at epsilon 1, with a scale for each of three groups, 15 were lost at the usual cost and 6 at twice.
LOCATION_STEPS, MORE_FOR_BISECTIONS = 2, 2.0
#: The largest decrease of simulated rows' log-likelihood over a step, relative to the quadratic with their information;
#: and the radius of the trust region. With .5 in place of .35 a third of the searches of a mixture were lost.
NEARLY_A_PARABOLA, TRUST_BY_SIMULATION = 1.5, 0.35
#: The smallest eigenvalue of the rows' information scaled to a unit diagonal, before the centre. Of 16 searches each of
#: two mixtures of two components, at epsilon 1 and 4, 22 were lost with 0, 8 with .01, one with .03 and none with .1;
#: with .2 those of the two shapes of a gamma distribution end too early.
LEAST_KNOWN_ON_THE_WAY = 0.1
#: The difference of a released curvature from the model's counts as misspecification if its mean square exceeds that of
#: noise by this many standard deviations.
CLEARLY_ANOTHER = 2.0
#: The largest number of binary searches for logarithms of positive parameters: others keep the model's start.
MOST_BISECTED = 6
#: With at most this many scales and shapes, each has this many scores of its own at the centre.
MOST_OWN_SCORES, OWN_SCORES = 3, 2
#: Releases of the first binary search for each, and of the two later ones; half the intervals, on the log scale.
FIRST_BISECTIONS, LATER_BISECTIONS = 8, 5
FIRST_REACH, LATER_REACH = 16.0, 2.5
#: The clip bound of scores of a logarithm in binary searches. It moves the zero of a log sigma by .06.
CLIP_OF_BISECTION = 3.0
#: The same for log-shapes that a mean does not depend on: if they are too small, each row adds at most half to the
#: score. With a bound of 3 noise hid that of 6,000 rows at epsilon 1, and all of 40 searches of their gamma regression
#: were lost. Scores of log sigma have no such limit: with 1.5, searches of truncated rows were lost, too.
CLIP_OF_SHAPES = 1.5
#: A sum within this many standard deviations of its noise is ignored: in the first binary search the prior's slope
#: decides, in later ones nothing moves.
CLEAR_BISECTION = 3.0
#: Smaller moves of a late binary search are ignored: the steps are more precise.
LEAST_MOVE_OF_BISECTION = 0.2
#: The range of the search for the level, in linear predictors, and its number of releases. Histograms and curvature at
#: it have half the share of those at the start. The typical ratio of curvatures to slopes of positive responses:
#: histograms extend to a thousand times as much, and to a 64th: far smaller responses have smaller curvatures.
REACH_OF_LEVEL, LEVEL_BISECTIONS, OF_LEVEL, FROM_ABOVE = 16.0, 9, 0.5, 2.0**-4
#: The curvature for the direction of the level is clipped at this many times its mean norm. The prior's information,
#: scaled to this many times the largest eigenvalue of noise, is added; eigenvalues are raised to this many times that.
#: (Of .4, 1.2 and 4 on prices of computers and expenses of households the first was the best.)
CLIP_OF_LEVEL, NOISE_OF_LEVEL, FLOOR_OF_LEVEL = 2.0, 4.0, 0.4
#: The typical information of a row on its predictor, and the typical norm of its slope: histograms extend from an
#: eighth of it to 10⁵ times it. The last is the largest logarithm of information in use.
TYPICAL_OF_ROW, MOST_LOG_INFORMATION = 8.0, 20.0
#: After a binary search with a larger move, earlier histograms of norms are discarded.
SETTLED = 0.5
#: Radii of the trust region, in roots of a unit's mean squared log-likelihood ratio: for the first steps if the model
#: determines the possible responses, for other steps, and for the last one.
TRUST_FAR, TRUST_NEAR, TRUST_LAST = 0.7, 0.5, 0.3
#: The same for the location of a normal regression, whose curvature is constant: no residual is farther away.
TRUST_OF_LOCATION = 1.5
#: For counts a step may move linear predictors by 1, root mean square: this over `TRUST_FAR`.
TRUST_OF_PREDICTORS = 1.0 / TRUST_FAR
#: For units of several rows the radius grows by this factor after each step along which the score decreased as the
#: curvature predicts, to within half. Of planes of 20 flights a quarter of searches at epsilon 4 failed without.
GROWTH_OF_TRUST = 2.0
#: The floor of a curvature in nonlinear coordinates, after the correction by a noisy score, as a part of the largest
#: eigenvalue. Of .005, .03, .1 and .25 on three tables with rare events the first two were as good, the last twice as
#: bad.
LEAST_ALONG_COORDINATES = 0.03
#: The largest step of the logarithm of a scale: beyond it a quadratic log-likelihood overshoots.
MOST_STEP_OF_SCALE = 1.0
#: The curvature is corrected if a change of the score differs from its prediction by this factor, beyond noise: with
#: less than half the true curvature, steps overshoot and do not converge. It is never lowered below a fifth, which
#: makes a next step five times as long.
CLEAR_OVERSHOOT, LEAST_OF_CURVATURE = 1.5, 0.2
#: The largest relative noise of such a change: scores have no information on the curvature over short steps.
CLEAR_STEP = 0.5
#: Third-order terms of a log-likelihood, relative to the squared distance in the metric of one unit's information.
THIRD_ORDER = 1.0
#: For piecewise linear log-likelihoods: the distance from the centre at which a score is released, in the metric of one
#: unit's information; the prior variance of the ratio of the true curvature to the model's; and the least factor by
#: which two scores lower the curvature.
WAY_OFF, VARIANCE_OF_RATIO, LEAST_OF_BROKEN_LINES = 0.2, 0.25, 0.4
#: The least part of the squared residuals that is assumed to remain after a step.
LEAST_LEFT = 0.02
#: The least and largest clip bound of scores of a scale: squared normal residuals less one, over √2.
LEAST_OF_SCALE, MOST_OF_SCALE = 6.0, 18.0
#: The lower clip bound of the score of a unit of several rows, in mean numbers of rows.
LEAST_OF_SQUARES = 2.0
#: The least clip bound of scores of other scales and shapes, in roots of a unit's information. Histograms do not show
#: the loss at a small bound: of 3, 4 and 5 on gamma, negative binomial, Weibull and ex-Gaussian regressions 5 was the
#: best where tails are longer than the model's, and no worse elsewhere.
LEAST_OF_OWN_SCORE = 5.0
#: The mean square of such scores, as the prior for their histograms, in the same units: 1 for a correct model. Of none,
#: 1 and 3 on five regressions 1 made intervals too narrow for overdispersed rows, and none made the others too wide.
MEAN_SQUARE_OF_OWN_SCORE = 3.0
#: The largest noise of the scale of a normal regression by its clip bound, in posterior standard deviations: the noise
#: of a histogram looks like a tail. Of 1.5, 2, 2.5, 3 and none on 43 linear tables of 2,700 to 27,800 rows, whose
#: residuals have a kurtosis of 1.8 to 10, 2 had the least error at epsilon 1, and 1.5 and 2 the least at 2.
MOST_NOISE_OF_SCALE = 2.0
#: The part of a lost norm that adds to the bias: half if the mean is added back or both signs are clipped.
BIAS_OF_CENTRED, BIAS_OF_CLIPPED = 0.5, 1.0
#: The same for the location of a normal regression, as residuals of real tables are skewed. Of .5, .75 and 1 on six
#: linear tables: where skewed tails are most of the error it falls by 15 % from .5 to .75, else it grows by at most 8
#: %.
BIAS_OF_LOCATION = 0.75
#: Along one of d directions bias is at most the lost norm over the root of d, if a unit's loss is independent of the
#: direction of its score. Twice that is allowed for; once with groups, whose members are orthogonal. (Measured with 133
#: groups, 137 directions: 2.1 times, most of it chance.)
BIAS_OF_DIRECTIONS, BIAS_OF_GROUPS = 2.0, 1.0
#: The part of that bias that remains if the slopes of scores are corrected for clipping: .35 to .75 was measured on
#: three tables with 30 to 133 groups, most of it chance. The second is the least factor of a slope: noise is divided by
#: it.
BIAS_LEFT, LEAST_KEPT = 0.5, 0.3
#: The part of a released loss that is reported as a bias, if both signs are clipped: the average of measurements.
REPORTED_BIAS = 0.3
#: The weight of the precision of an earlier histogram of norms, at another point with another preconditioner.
TRUST_IN_EARLIER = 0.5
#: A count of scores by octave, more than eight times as large as the mode, is used if it exceeds this many standard
#: deviations of noise: of dozens of octaves for each of dozens of parameters none may pass by chance, as it would
#: determine the whole mean square. With 4.5 about one search of ten parameters in 1,500 lost one of them.
CLEAR_COUNT_FAR_AWAY = 6.0
#: The part of the units whose early curvature is not clipped, except for normal regressions: the noise of many counts
#: exceeds the rest, and with groups and a raw covariate it doubled errors at epsilon 1.
EARLY_QUANTILE = 0.995
#: The weight in clipped norms of scores of logarithms of scales, which have long tails.
SCALE_IN_NORM = 0.5
#: The weight of other parameters decreases with the tails of their scores, as of a rare level: by this power of the
#: mean fourth power. Of 0, 1/8 and 1/4 on five tables 1/8 was the best or next to it: 1/4 suits rare levels best, but
#: noise then dominates in a few directions.
POWER_OF_TAILS = 0.125
#: Room, relative to the frame, for the curvatures and scores of units that alone have information on a parameter:
#: frames come from clipped curvatures, and a bound without room would clip them again. Of 1, 1.4 and 2 for both, and 2
#: with 1 and with 1.4, on six logistic and six linear models with a rare covariate, 2 with 1.4 was best or second.
ROOM_FOR_RARE_CURVATURES, ROOM_FOR_RARE = 2.0, 1.4
#: The number of units that a histogram of norms hides, in standard deviations of a bin: five in each of two bins.
HIDDEN_UNITS = 10.0
#: The largest contribution of hidden counts by octave, relative to the squares seen. (1 in its place was as good.)
MOST_UNSEEN = 3.0
#: The weight of members of groups decreases with their number for each other parameter, by this power of it: noise is
#: proportional to a norm that members dominate. The sum of the mean squared errors of both kinds is least at 1/4; of 0,
#: 1/8 and 1/4 on four tables 1/8 was the best, or next to it, in error over all parameters.
POWER_OF_MEMBERS = 0.125
#: Clipping removes curvature in all d directions: this over d of it counts as bias along one of them.
BIAS_OF_CURVATURES = 4.0
#: The largest noise of a curvature relative to its mean.
MOST_NOISE_OF_CURVATURE = 0.5
#: Floors of the eigenvalues of released curvatures, as parts of the largest eigenvalue of noise alone: early, in the
#: middle, late, and at the centre. Expected curvatures have no negative eigenvalues, and large floors hide nearly
#: collinear directions; observed curvatures may have them far from the mode.
FLOORS_OF_EXPECTED, FLOORS_OF_OBSERVED = (0.4, 0.3, 0.3, 0.2), (1.0, 1.0, 1.0, 0.5)
#: Several releases for the location of a normal regression are of one matrix: an eigenvalue small in all is small.
FLOOR_OF_LOCATION = 0.15
#: A clipping loss is attributed to outliers if it exceeds the histogram's by this many standard deviations.
CLEAR_OUTLIERS = 2.5
#: The factor of the clip bound of a second score of the scale; the number of standard deviations by which it has to be
#: larger to replace the first, whose error it may have by chance; and the part of the squares between the bounds that
#: is allowed for beyond.
WIDER_OF_SCALE, CLEARLY_WIDER, BEYOND_WIDER = 4.0, 3.5, 0.5
#: The histogram replaces the frame if the median curvature norm of a unit exceeds the frame's by this factor: a bound
#: that clips nearly all units makes a curvature so small that steps overshoot.
WRONG_FRAME = 2.0
#: Outliers enlarge a clip bound up to a noise of this many posterior standard deviations, and by at least this factor.
MOST_NOISE_OF_SCORE, LARGER_FOR_OUTLIERS = 1.5, 1.1
#: The largest decrease of the log curvature along a step, which makes a step 2.2 times Newton's. A step is Newton's if
#: its squared length is less than this many times that of its noise.
MOST_FALL, CLEAR_GROWTH = -0.85, 16.0
#: Scores at points whose log curvature differs by more from that at the last point are left out: for rare events, the
#: one at even odds would make a step ten times too long.
MOST_GROWTH = 1.0
#: The least part of a score's slope that is assumed to remain after clipping: of an event in a thousand rows, clipped
#: at the bound of the others, it is about 3 %.
LEAST_SLOPE_KEPT = 0.02
#: This part of the prior's information is added to that of the units in a frame: the likelihood of an intercept and of
#: the levels of groups is constant along one direction, where noise alone would determine the axis.
LEAST_OF_PRIOR = 0.01
#: The noise of the published likelihood is evaluated over the displacement to the posterior mean under this part of the
#: prior's information: a prior three times as wide is allowed for. Of 1, 1/10 and 1/100 on four tables with groups
#: errors were up to 18 % larger with the last than with the first, which makes intervals too narrow under wider priors.
PART_OF_PRIOR = 0.1
#: The least diagonal curvature of a member of a grouping in a frame, as a part of their median. Of 0, 1/4, 1/2 and 1 on
#: five tables 1/2 was the best, or next to it: with groups of very different size errors at epsilon 1 fell by a tenth,
#: and with 1 those of groups with much information grew by a tenth at epsilon 4. Of linear models 1 was better on most
#: tables, and much worse on one whose covariates follow its groups.
LEAST_OF_MEMBERS = 0.5
#: A step of a scale has overshot if its score at the end has the opposite sign by more standard deviations than this;
#: the information grows at most with this power of a scale: that on a small standard deviation between persons, with
#: the fourth.
CLEARLY_OVERSHOT, FASTEST_GROWTH = 3.0, 6.0
