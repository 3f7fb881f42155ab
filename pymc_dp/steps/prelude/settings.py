"""What the cost of learning a table's scale is spent on, and the constants of the search: each with its reason.

Chosen on simulated regressions and on the tables named in docs/control_variates.md. Most were frozen before other
tables were run. The floors of expected curvatures, the limit of the doubtful width and the late curvature were not:
they were changed after the kept tables had been looked at, so that figures on those are not independent of them.
"""

from dataclasses import dataclass

from pymc_dp import _validate
from pymc_dp.exceptions import InvalidArgument


@dataclass(frozen=True)
class Shares:
    """What the parts of the cost are spent on: they add up to 1.

    Attributes
    ----------
    centre : float
        The search for the centre: scales, early curvatures, scores on the way.
    score : float
        The score at the centre.
    curvature : float
        The curvature at the centre.
    tests : float
        Residual log-ratios: 0 for draws that are not tested.
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
    #: The histogram of the sizes of scores, by parameter; the direction in which predictors rise; each histogram of
    #: norms, which show a few long ones, and of sizes that most units have, to see growth.
    coordinates: float = 0.025
    rise: float = 0.01
    sizes: float = 0.006
    growth: float = 0.003
    #: The curvature where the search begins, after the first step, and after the second; with a scale of continuous
    #: responses the third comes before the last step, for a curvature is soon out of date there.
    early: float = 0.03
    middle: float = 0.04
    late: float = 0.06
    #: One score on the way, and the last one before the centre.
    approach: float = 0.04
    centre: float = 0.17
    #: All histograms and scores of scales and shapes by themselves, at the centre.
    scale_sizes: float = 0.08
    scale: float = 0.15
    #: The same scores of a scale that is found apart from the location, by a wider bound, and one on the way.
    wide_scale: float = 0.0
    scale_approach: float = 0.0
    #: And how many rows there are, where units have several.
    rows: float = 0.0
    #: A score a way off, where log-likelihoods are broken lines.
    way_off: float = 0.06


#: Directions in which covariates are nearly collinear show in the third curvature: each is released along axes that the
#: ones before it whiten. Of an intercept 25 sigma from the prior's, 12 of 12 runs at epsilon 4 were lost without it.
PARTS = PartsOfSearch()
#: Of a normal regression the information of the location is released before any score. Twice as much of it, and one
#: step less, was as good at epsilon 4 and 6 % worse at 1, on twelve tables.
#:
#: A direction that is nearly collinear, as groups and a covariate that is far from zero, is lifted by noise, in each
#: release to a part of what it was in the one before: of 3, 4 and 5 releases at the same cost the second was the best,
#: or next to it, on six tables.
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
#: Of continuous responses there are twice as many scores on the way. (Those of broken lines need all they get: an upper
#: tenth is found less well with half.)
PARTS_OF_CONTINUOUS = PartsOfSearch(approach=0.02)
MIDDLE_OF_LOCATION = 2
#: Where rows are simulated from the model curvatures cost nothing on the way, and a mixture needs many short steps: of
#: 24 searches each at epsilon 4, 12 steps lost 2 and 4 on two tables, 16 one or none.
PARTS_BY_SIMULATION = PartsOfSearch(approach=0.01)
SHARES_BY_SIMULATION = Shares(centre=0.45, score=0.49, curvature=0.06, tests=0.0)
SHARES_OF_LOCATION = Shares(centre=0.69, score=0.29, curvature=0.02, tests=0.0)
#: After how many steps the third curvature is released, at the earliest. Where responses are not known it waits while
#: the trust region holds steps: far from the mode it would soon be out of date. Of ten searches each of a gamma
#: regression whose way is long 2 were lost at epsilon 1 without waiting. Expected curvatures gained nothing by it.
STEPS_BEFORE_LATE = 2
#: Steps on the way to the last score before the centre.
STEPS = 4
#: The same of continuous responses, but for the location of a normal regression. The curvature changes on the way, so
#: that steps are short: of 40 searches each of an exponential, a Gumbel and a Weibull regression at epsilon 4, four
#: longer steps were .79, 1.5 and .96 off (root mean square), eight .49, .67 and .86. Scores of broken lines hardly fall
#: before the maximum is near.
STEPS_OF_CONTINUOUS = 8
STEPS_BY_SIMULATION = 16
#: So many steps at the beginning move the location of normal rows alone, each before binary searches for their scales:
#: the first goes most of the way from 0, the second what is left. Regressions have so many steps more, and a
#: binary search in them costs so many times as much: of 24 searches each of a mean that is a standard deviation or two
#: away at epsilon 1, with a scale for each of three groups, 15 were lost at the usual cost and 6 at twice.
LOCATION_STEPS, MORE_FOR_BISECTIONS = 2, 2.0
#: How many times as large as by their information the fall of simulated rows' log-likelihood may be over a step; and
#: how far steps go. With .5 in place of .35 a third of the searches of a mixture were lost.
NEARLY_A_PARABOLA, TRUST_BY_SIMULATION = 1.5, 0.35
#: The least that rows tell on the way along any direction, in units of each parameter's own. Of 16 searches each of two
#: mixtures of two components, at epsilon 1 and 4, 22 were lost with 0, 8 with .01, one with .03 and none with .1; with
#: .2 those of the two shapes of a gamma distribution end too early.
LEAST_KNOWN_ON_THE_WAY = 0.1
#: By how many standard deviations of its mean square the difference of a released curvature from the model's is more
#: than noise, before rows are taken for other ones than the model's.
CLEARLY_ANOTHER = 2.0
#: Only so many logarithms of positive parameters are searched for: the others start where the model says.
MOST_BISECTED = 6
#: If there are no more scales and shapes, each has so many scores of its own at the centre, one after the other.
MOST_OWN_SCORES, OWN_SCORES = 3, 2
#: Answers of the first binary search for each, and of the two later ones; half the intervals, on the log scale.
FIRST_BISECTIONS, LATER_BISECTIONS = 8, 5
FIRST_REACH, LATER_REACH = 16.0, 2.5
#: Scores of a logarithm are cut to this in binary searches. It saves noise, and moves the zero of a log sigma by .06.
CLIP_OF_BISECTION = 3.0
#: A sum within this many standard deviations of its noise says nothing: in the first binary search the prior's slope
#: decides, in later ones nothing moves.
CLEAR_BISECTION = 3.0
#: A late binary search that moves a parameter less than this moves nothing: the steps know it better.
LEAST_MOVE_OF_BISECTION = 0.2
#: The level is searched for as far as this, in linear predictors, with so many answers. Sizes and curvature there cost
#: half of what they do where the way begins. Curvatures of positive responses are this part of slopes, or a thousand
#: times as much, or a 64th: responses that are far smaller have less.
REACH_OF_LEVEL, LEVEL_BISECTIONS, OF_LEVEL, FROM_ABOVE = 16.0, 9, 0.5, 2.0**-4
#: The direction of the level is found by a curvature that is cut to so many times its mean size. Added to it is the
#: prior's information, so many times the largest of noise where it tells most; and eigenvalues are at least so many
#: times that. (Of .4, 1.2 and 4 on prices of computers and expenses of households the first was the best.)
CLIP_OF_LEVEL, NOISE_OF_LEVEL, FLOOR_OF_LEVEL = 2.0, 4.0, 0.4
#: What a row usually tells of its predictor, and how large its slope is: histograms are around it, from an eighth to
#: 10⁵. And the logarithm of the most that is believed.
USUALLY_TOLD, MOST_TOLD = 8.0, 20.0
#: After one that moves a parameter more than this, earlier histograms of norms say nothing.
SETTLED = 0.5
#: Steps of the root of the mean squared log-likelihood ratio of a unit: far away where the model says which responses
#: a row could have had, on the way, the last one.
TRUST_FAR, TRUST_NEAR, TRUST_LAST = 0.7, 0.5, 0.3
#: The same of the location of a normal regression, where the curvature is constant: no residual is farther away.
TRUST_OF_LOCATION = 1.5
#: Of counts a step on the way may move linear predictors by 1, root mean square: this over `TRUST_FAR`.
TRUST_OF_PREDICTORS = 1.0 / TRUST_FAR
#: Of units of several rows it may be this many times as far after each step along which the score has fallen as the
#: curvature says, to within half. Of planes of 20 flights a quarter of the searches at epsilon 4 were lost without it.
GROWTH_OF_TRUST = 2.0
#: What a noisy score takes off a curvature along bent coordinates leaves this part of the largest eigenvalue, or more.
#: Of .005, .03, .1 and .25 on three tables with rare events the first two were as good, the last twice as far off.
LEAST_OF_BENT = 0.03
#: A step changes the logarithm of a scale by no more: farther away its log-likelihood is no parabola: steps overshoot.
MOST_STEP_OF_SCALE = 1.0
#: How many times as large as the curvature says, or as small, a change of the score has to be, beyond its noise, before
#: the curvature is corrected: with less than half the true one, steps overshoot to and fro and never end. It is never
#: lowered below a fifth: a next step may have five times the length.
CLEAR_OVERSHOOT, LEAST_OF_CURVATURE = 1.5, 0.2
#: And how large, in proportion to what the curvature says, its noise may be: of short steps scores tell nothing.
CLEAR_STEP = 0.5
#: Terms of third order of a log-likelihood, in proportion to the squared distance in units of what one unit tells.
THIRD_ORDER = 1.0
#: Of log-likelihoods that are broken lines: how far from the centre a score is released, in units of what one unit
#: tells; how much the curvature of their sum may differ from the model's, as a variance of the ratio; and to which part
#: two scores lower it at most.
WAY_OFF, VARIANCE_OF_BENDING, LEAST_OF_BROKEN_LINES = 0.2, 0.25, 0.4
#: A step is not believed to leave less than this part of the squared residuals.
LEAST_LEFT = 0.02
#: Where scores of a scale are cut, squared normal residuals less one over √2: not nearer, and not farther out.
LEAST_OF_SCALE, MOST_OF_SCALE = 6.0, 18.0
#: The score of a unit of several rows is cut at less so many times the mean number of rows.
LEAST_OF_SQUARES = 2.0
#: The same, not nearer, of other scales and shapes, in roots of a unit's information. Histograms do not see what a near
#: bound cuts: of 3, 4 and 5 on gamma, negative binomial, Weibull and ex-Gaussian regressions the last was the best
#: where tails are longer than the model's, and no worse elsewhere.
LEAST_OF_OWN_SCORE = 5.0
#: The mean square of such scores that histograms are believed to show, in the same units: 1 where the model is right.
#: Of none, 1 and 3 on five regressions 1 made intervals too narrow where rows vary more, and none the others too wide.
MEAN_SQUARE_OF_OWN_SCORE = 3.0
#: What part of a lost length adds to the bias: half where the mean is added again, or where residuals of either sign
#: are clipped; else all.
BIAS_OF_CENTRED, BIAS_OF_CLIPPED = 0.5, 1.0
#: The same of the location of a normal regression: residuals of real tables are skewed. Of .5, .75 and 1 on six linear
#: tables: where skewed tails are most of the error it falls by 15 % from .5 to .75, elsewhere it grows by up to 8 %.
BIAS_OF_LOCATION = 0.75
#: Along one of d directions bias is at most the lost length over the root of d, if how much a unit loses has nothing to
#: do with where its score points. Twice that is allowed for; once where there are groups, whose members are at right
#: angles. (Measured with 133 groups, 137 directions: 2.1 times, most of it chance.)
BIAS_OF_DIRECTIONS, BIAS_OF_GROUPS = 2.0, 1.0
#: Where the slopes of scores are corrected for clipping, this part of that bias is left: .35 to .75 was measured on
#: three tables with 30 to 133 groups, most of it chance. No less of a slope is believed to be left than the second:
#: noise is divided by it.
BIAS_LEFT, LEAST_KEPT = 0.5, 0.3
#: What part of a released loss is reported as a bias, where both sides are clipped: that is what was seen on average.
REPORTED_BIAS = 0.3
#: How much an earlier histogram of norms still says, at another point by another preconditioner.
TRUST_IN_EARLIER_SIZES = 0.5
#: A count of scores by octave, more than eight times as large as most, has to be as many standard deviations of its
#: noise: of dozens of octaves for each of dozens of parameters none may pass by chance, for it would be the size of
#: all. With 4.5 about one search of ten parameters in 1,500 lost one of them.
CLEAR_COUNT_FAR_AWAY = 6.0
#: Part of the units whose early curvature is not cut, but for normal regressions: noise of many counts is more than the
#: rest, and of groups with a raw covariate errors at epsilon 1 were twice as large by it.
EARLY_QUANTILE = 0.995
#: Scores of logarithms of scales have long tails: they count this part in the norm that is clipped.
SCALE_IN_NORM = 0.5
#: Other parameters count the less the longer the tails of their scores are, as those of a rare level: by this power of
#: the mean fourth power. Of 0, 1/8 and 1/4 on five tables the second was best or next to it: the fourth is that which
#: suits rare levels best, but in a few directions noise is then all there is.
POWER_OF_TAILS = 0.125
#: How many times as long units may be that alone tell of a parameter as frames make them: these are made by curvatures
#: that were cut, and a bound of that length leaves them as they are. Of 1, 1.4 and 2 for both, and 2 beside 1 and 1.4,
#: on six logistic and six linear models with a rare covariate, 2 beside 1.4 was the best or next to it.
ROOM_FOR_RARE_CURVATURES, ROOM_FOR_RARE = 2.0, 1.4
#: So many units a histogram of norms does not show, in standard deviations of a bin: five in each of two bins.
HIDDEN_UNITS = 10.0
#: Noise of counts by octave hides no more than so many times the squares that are seen. (1 in its place was as good.)
MOST_UNSEEN = 3.0
#: Members of groups count the less the more there are to each other parameter, by this power of that number: noise is
#: in proportion to a norm that is nearly all theirs. The mean squared errors of both kinds add up to the least at 1/4;
#: of 0, 1/8 and 1/4 on four tables the second was the best, or next to it, in error over all parameters.
POWER_OF_MEMBERS = 0.125
#: What clipping takes off curvatures is spread over their d directions: this over d counts as bias along one of them.
BIAS_OF_CURVATURES = 4.0
#: The noise of a curvature is never more than this part of what it is on average.
MOST_NOISE_OF_CURVATURE = 0.5
#: Eigenvalues of a released curvature are lifted to this part of what noise alone reaches: early, in the middle, late,
#: and at the centre. Expected curvatures have none below zero, and lifting small ones hides directions that are nearly
#: collinear; observed curvatures may have, far from the mode.
FLOORS_OF_EXPECTED, FLOORS_OF_OBSERVED = (0.4, 0.3, 0.3, 0.2), (1.0, 1.0, 1.0, 0.5)
#: Of the location of a normal regression several releases are one matrix: what is small in all of them is small.
FLOOR_OF_LOCATION = 0.15
#: By how many standard deviations of its noise a clipping loss is more than histograms say, if outliers are the reason.
CLEAR_OUTLIERS = 2.5
#: How many times as far out squares are cut in a second score of the scale; by how many standard deviations of its
#: noise it has to be larger to take the place of the first, for by chance it would be as far off; and what part of the
#: squares in between is allowed for beyond.
WIDER_OF_SCALE, CLEARLY_WIDER, BEYOND_WIDER = 4.0, 3.5, 0.5
#: How many times as large as a frame says the median curvature of a unit has to be, before the histogram is believed: a
#: bound that cuts nearly all units makes a curvature so small that steps overshoot.
WRONG_FRAME = 2.0
#: For outliers a clip bound grows no farther than until its noise is as many posterior standard deviations; and only if
#: it becomes as many times as large.
MOST_NOISE_OF_SCORE, LARGER_FOR_OUTLIERS = 1.5, 1.1
#: A step is longer than Newton's as if curvatures fell by no more than exp(this) along it: 2.2 times. And it is only as
#: long as Newton's where its squared length is less than so many times that of its noise.
MOST_FALL, CLEAR_GROWTH = -0.85, 16.0
#: Scores where the curvature is larger or smaller by more than exp(this) say nothing of the end of the way: of rare
#: events, the one at even odds would lead ten times too far.
MOST_GROWTH = 1.0
#: No less of the slope of a score is believed to be left by clipping: of an event in a thousand rows, cut to what the
#: others need, it is about 3 %.
LEAST_SLOPE_KEPT = 0.02
#: No axis of a frame is longer than if units told this part of what the prior does: a likelihood of an intercept and of
#: the levels of groups is constant along one direction, and noise alone says how long that axis is.
LEAST_OF_PRIOR = 0.01
#: The noise of what is handed out counts over the way to where a prior with this part of the information would end: one
#: three times as wide is allowed for. Of 1, 1/10 and 1/100 on four tables with groups errors were up to 18 % larger
#: with the last than with the first, which makes intervals too narrow where others draw with wider priors.
PART_OF_PRIOR = 0.1
#: No axis of a member of a grouping is longer than if its own curvature were this part of their median. Of 0, 1/4, 1/2
#: and 1 on five tables 1/2 was the best, or next to it: with groups of very different size errors at epsilon 1 fell by
#: a tenth, and with 1 those of groups that are known well grew by a tenth at epsilon 4. Of linear models 1 was better
#: on most tables, and much worse on one whose covariates follow its groups.
LEAST_OF_MEMBERS = 0.5
#: A step of a scale has overshot if its score at the end is more standard deviations off than this, to the other side;
#: and information grows no faster than with this power of a scale: that on how much persons vary, where that is little,
#: with the fourth.
CLEARLY_OVERSHOT, FASTEST_GROWTH = 3.0, 6.0
