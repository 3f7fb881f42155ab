"""What samplers hand to the curator and keep of it changes neither what was paid for nor how far sums move."""

import copy
import dataclasses
import functools
import pickle

import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, gaussian_model
from contributed import DPCrankNicolson

import pymc_dp as dp
from pymc_dp.accounting import (
    BarkerReleases,
    GaussianReleases,
    PoissonGaussianReleases,
    WithoutReplacementGaussianReleases,
    check_relation,
)
from pymc_dp.budget.plan import Plan, ReleaseRequest, StepPlan
from pymc_dp.model.view import read
from pymc_dp.release import Curators, ExpansionPoint, MeteredCurator
from pymc_dp.release.batches import BatchesWithoutReplacement, PoissonBatches
from pymc_dp.release.interface import Expanded, GradientPrediction, Prediction
from pymc_dp.release.preconditioned import GradientSizes, PreconditionedGradient
from pymc_dp.release.queries import (
    BarkerDecision,
    ClipCounts,
    Curvature,
    DecisionClipCounts,
    GradientSum,
    Residual,
    VariancePenalisedLogRatio,
    plain,
)
from pymc_dp.rows import UnitLikelihood


class NoNoise:
    """Adds nothing; its bits are reproducible."""

    def __init__(self):
        self._generator = np.random.default_rng(0)

    def add(self, integers, scale):
        return integers

    def for_chain(self, key):
        return self

    def words(self, count):
        return self._generator.integers(0, 2**64, size=count, dtype=np.uint64)


def rows_model(y):
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        pm.Normal("y", beta[0] + 0.5 * beta[1], 1.0, observed=np.asarray(y, dtype=float))
    return model


def rows_of(y):
    return UnitLikelihood(read(rows_model(y)))


def counts_of(y):
    """Return rows whose curvature is another one at another point."""
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        pm.Poisson("y", pm.math.exp(beta[0] + 0.5 * beta[1]), observed=np.asarray(y))
    return UnitLikelihood(read(model))


def opened(rows, relation="substitute", paid=3.0, events=(), **allowance):
    """Return a curator that may release `events`, and on all units what else is allowed, with noise `paid`."""
    on_all = [GaussianReleases(kind, count, paid) for kind, count in allowance.items()]
    return MeteredCurator(rows, NoNoise(), relation, [*events, *on_all])


class Held:
    """Says that it made a copy, and keeps the array."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


@pytest.mark.parametrize("through", ["where", "array"])
def test_what_a_sampler_holds_does_not_move_an_expansion_point(through):
    """Hazard H40: units are weighted once at a point; a point that moves afterwards leaves weights that do not fit."""
    curator = opened(counts_of([5, 0, 2]), curvature=2)
    directions = np.eye(2)
    query = Curvature(ExpansionPoint(np.zeros(2), np.eye(2), 1.0, 1.0))
    object.__setattr__(query.point, "preconditioner", Held(directions))
    first = curator.release(query, 3.0)
    if through == "where":
        first.where[0][:] = 1.0
    else:
        directions *= 1e6
    again = curator.release(Curvature(ExpansionPoint(np.zeros(2), np.eye(2), 1.0, 1.0)), 3.0)
    assert np.array_equal(first.value, again.value)
    assert np.linalg.norm(again.value) <= 3.0


class Loud(float):
    """Says something else whenever it is asked."""

    asked = 0

    def __float__(self):
        Loud.asked += 1
        return 10.0**Loud.asked

    def __mul__(self, other):
        return 1e9

    __rmul__ = __mul__


def held_everywhere(through):
    """Yield queries of expansions with arrays that somebody else holds, as they are or in objects, and the arrays."""
    held = [np.full(2, 0.25), np.eye(2), np.full(2, 0.5), np.full(2, -0.5), np.eye(2), np.zeros(2)]
    theta, way, direction, other, jacobian, offset = map(through, held)
    point = ExpansionPoint(theta, way, 1.0)
    old, new = Prediction(theta, direction, True, 0.1), Prediction(other, offset, False, 0.0)
    expanded, gradients = Expanded(point, old, new), GradientPrediction(theta, jacobian, direction, offset)
    for query in (
        PreconditionedGradient(point, way, gradients, 1.0),
        GradientSizes(point, way, gradients, 1.0, 3),
        Residual(point, old, new, 1.0),
        VariancePenalisedLogRatio(theta, other, 1.0, FIXED, 0.5, expanded=expanded),
        BarkerDecision(theta, other, 0.0, FIXED, 0.5, expanded=expanded),
        DecisionClipCounts((expanded, (theta, other)), FIXED, 0.5),
    ):
        yield query, held


def numbers_in(each):
    """Yield every array and number of a description, however deep."""
    if dataclasses.is_dataclass(each):
        yield from (number for field in dataclasses.fields(each) for number in numbers_in(getattr(each, field.name)))
    elif isinstance(each, tuple):
        yield from (number for entry in each for number in numbers_in(entry))
    else:
        yield each


@pytest.mark.parametrize("through", [Held, lambda array: array])
def test_nothing_of_what_a_sampler_describes_is_held_by_anybody_else(through):
    """Hazard H40: an array of an expansion that moves while it is kept, or between payment and evaluation."""
    for query, held in held_everywhere(through):
        copied = list(numbers_in(plain(query)))
        arrays = [each for each in copied if not isinstance(each, float | int | str | bool | type(None))]
        assert len(arrays) >= 4
        assert all(type(each) is np.ndarray and each.dtype == np.float64 for each in arrays)
        assert not any(np.shares_memory(one, other) for one in arrays for other in held)


def test_numbers_are_asked_for_once():
    """Hazard H40: a number of a class of the sampler's own, that is one at the check and another at the sum."""
    point = ExpansionPoint(np.zeros(2), np.eye(2), Loud(1.0), Loud(1.0))
    prediction = Prediction(np.zeros(2), np.ones(2), True, Loud(1.0))
    zero = np.zeros(2)
    gradients = GradientPrediction(zero, np.eye(2), zero, zero)
    for query in (
        PreconditionedGradient(point, np.eye(2), gradients, Loud(1.0)),
        GradientSizes(point, np.eye(2), gradients, Loud(1.0), 3),
        VariancePenalisedLogRatio(
            zero, zero, Loud(1.0), FIXED, Loud(1.0), expanded=Expanded(point, prediction, prediction)
        ),
        BarkerDecision(zero, zero, Loud(1.0), FIXED, Loud(1.0), expanded=Expanded(point, prediction, prediction)),
        DecisionClipCounts((Expanded(point, prediction, prediction),), FIXED, Loud(1.0)),
    ):
        assert not any(isinstance(number, Loud) for number in numbers_in(plain(query)))


class OfAnotherSize(BatchesWithoutReplacement):
    """Draws other batches than it says."""


@pytest.mark.parametrize("make", [PreconditionedGradient, VariancePenalisedLogRatio, BarkerDecision])
def test_batches_of_a_samplers_own_are_refused(make):
    zero, gradients = np.zeros(2), GradientPrediction(np.zeros(2), np.eye(2), np.zeros(2), np.zeros(2))
    given = (zero, zero, 1.0) if make is not PreconditionedGradient else (EXPANDED_AT, np.eye(2), gradients, 1.0)
    settings = {} if make is PreconditionedGradient else {"tempering": 0.5}
    with pytest.raises(dp.PrivacyError, match="not by a OfAnotherSize"):
        plain(make(*given, batches=OfAnotherSize(20, 30), **settings))


EXPANDED_AT = ExpansionPoint(np.zeros(2), np.eye(2), 1.0)


@pytest.mark.parametrize("make", [VariancePenalisedLogRatio, BarkerDecision])
def test_tests_on_batches_take_batches_of_a_fixed_size(make):
    """Hazard H40: their sensitivity, and the cost of a decision, are proved for these alone."""
    with pytest.raises(dp.PrivacyError, match="fixed size"):
        plain(make(np.zeros(2), np.zeros(2), 1.0, PoissonBatches(0.1), 0.5))


def test_a_field_of_a_query_is_copied_as_the_type_that_it_declares():
    query = plain(GradientSum([1, 2], True, [1, 0], FIXED, 1))
    assert [type(query.theta), query.theta.dtype, type(query.clip_bound)] == [np.ndarray, np.float64, float]
    assert (query.blocks, query.counted) == ((True, False), True)
    assert query.batches == FIXED
    assert query.batches is not FIXED


def test_counts_of_all_units_tell_nothing_of_a_batch():
    """Hazard H40: a batch is asked once; a count of its clipped units would be a second release on it."""
    batches = PoissonBatches(0.5)
    events = [batches.releases("gradient", 1, 1.0)]
    curator = opened(rows_of([5.0, -3.0, 2.0]), "add-remove", events=events, clip_count=1)
    curator.release(GradientSum(np.zeros(2), 1e-3, batches=batches), 1.0)
    assert curator.release(ClipCounts(), 3.0).value == pytest.approx([0.0, 3.0])


def test_a_sampler_on_batches_cannot_leave_the_counts_to_the_base_class():
    class OnBatches(DPCrankNicolson):
        def sampler_requests(self, tune, draws):
            return [ReleaseRequest("log_ratio", tune + draws, 1.0, 1, batch_size=2, n_units=3)]

    with rows_model([5.0, -3.0, 2.0]):
        budget = dp.PrivacyBudget(1.0, 1e-6)
        step = OnBatches(budget=budget, clip_log_ratio=1.0, beta=0.5)
        silent = OnBatches(budget=budget, clip_log_ratio=1.0, beta=0.5, clip_diagnostics=None)
    with pytest.raises(dp.InvalidArgument, match="plans_clip_counts"):
        budget.plan(step, draws=5)
    assert budget.plan(silent, draws=5).releases


FIXED = BatchesWithoutReplacement(20, 30)


def test_decisions_and_noisy_releases_are_not_paid_for_as_each_other():
    """Hazard H19: a decision costs what decisions cost, however little noise costs, and needs no noise itself."""
    rows, zero, one = rows_of(np.zeros(30)), np.zeros(2), np.ones(2)
    cheap = WithoutReplacementGaussianReleases("decision", 1, 1e6, 20, 30)
    with pytest.raises(dp.BudgetExceeded, match="left of what was paid for"):
        opened(rows, events=[cheap]).release(BarkerDecision(zero, one, 0.0, FIXED, 0.5), 1e6)
    noiseless = BarkerReleases("log_ratio", 1, 20, 30)
    query = VariancePenalisedLogRatio(zero, one, 1.0, FIXED, 0.5)
    with pytest.raises(dp.BudgetExceeded, match="left of what was paid for"):
        opened(rows, events=[noiseless]).release(query, 1e-5)


def opened_by(plan, rows):
    make_curator = functools.partial(MeteredCurator, rows, relation="add-remove")
    return Curators(make_curator, NoNoise(), plan.chains, plan.of_one_chain, plan.once)


def test_a_prelude_releases_what_it_paid_for_and_nothing_of_what_chains_did():
    """Hazard H19: the same kind may be released before the chains, with other noise or of other units."""
    rows, full = rows_of([5.0, -3.0, 2.0]), GradientSum(np.zeros(2), 1.0)
    noisy = StepPlan("s", "", 1, (GaussianReleases("gradient", 1, 1e6),), (GaussianReleases("gradient", 1, 2.0),))
    curators = opened_by(noisy, rows)
    with pytest.raises(dp.BudgetExceeded):
        curators.open_once().release(full, 2.0)
    assert curators.open((0,)).release(full, 2.0).noise_std == 2.0
    sampled = StepPlan("s", "", 1, (PoissonGaussianReleases("gradient", 1, 0.5, 0.01),), ())
    before = opened_by(sampled, rows).open_once()
    with pytest.raises(dp.BudgetExceeded):
        before.release(full, 0.5)
    assert before.release(GradientSum(np.zeros(2), 1.0, batches=PoissonBatches(0.01)), 0.5).noise_std == 0.5


@pytest.mark.parametrize("tempering", [-1.25000001, 0.0, np.nan, np.inf])
def test_a_power_that_is_not_positive_is_refused(tempering):
    """Hazard H20: the formula of the penalised ratio is that of a positive scale; it vanishes at a negative one."""
    curator = opened(rows_of([10.0, *[-10.0] * 29]), events=[FIXED.releases("log_ratio", 1, 1.0)])
    query = VariancePenalisedLogRatio(np.zeros(2), np.ones(2), 1.0, FIXED, tempering)
    with pytest.raises(dp.PrivacyError, match="positive power"):
        curator.release(query, 1.0)


@functools.cache
def three_rows():
    return rows_of([5.0, -3.0, 2.0])


@pytest.mark.parametrize("shape", [(2, 5), (1, 2), (2, 1), (3, 2), (2,), (4,)])
def test_a_preconditioner_of_another_shape_is_refused(shape):
    """Hazard H36: compiled loops do not check bounds; what they would read beyond may be other rows."""
    rows = three_rows()
    curator = opened(rows, curvature=1)
    with pytest.raises(dp.InvalidArgument, match="a square preconditioner"):
        curator.release(Curvature(ExpansionPoint(np.zeros(2), np.ones(shape), 1.0, 1.0)), 3.0)
    with pytest.raises(dp.InvalidArgument, match="a square preconditioner"):
        rows.expansion(ExpansionPoint(np.zeros(3), np.eye(2), 1.0))


class EqualToAll(type(GradientSum)):
    def __eq__(self, other):
        return True

    __hash__ = type.__hash__


class EqualToAllEvents(type(GaussianReleases)):
    def __eq__(self, other):
        return True

    __hash__ = type.__hash__


def test_a_class_that_says_it_is_another_is_refused():
    """Hazard H40: classes are the same or not; equality is what a metaclass says."""

    class OwnQuery(GradientSum, metaclass=EqualToAll):
        pass

    class OwnEvent(GaussianReleases, metaclass=EqualToAllEvents):
        @property
        def rho(self):
            return 0.0

    with pytest.raises(dp.PrivacyError, match="answers no OwnQuery"):
        opened(rows_of([5.0, -3.0, 2.0]), gradient=1).release(OwnQuery(np.zeros(2), 1.0), 3.0)
    with pytest.raises(dp.InvalidArgument, match="does not describe releases"):
        check_relation([OwnEvent("gradient", 1, 1.0)], "substitute")


class Disguised(str):
    """Equal to whatever it is compared with, and found in every dictionary."""

    def __str__(self):
        return self

    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("score")


def test_names_are_compared_by_their_letters():
    """Hazard H40: a name that hashes and compares as it likes takes releases off other allowances, or off none."""
    query = Curvature(ExpansionPoint(np.zeros(2), np.eye(2), 1.0, 1.0), kind=Disguised("other"))
    with pytest.raises(dp.BudgetExceeded, match="'other'"):
        opened(rows_of([5.0, -3.0, 2.0]), score=1).release(query, 3.0)
    assert type(GaussianReleases(Disguised("other"), 1, 1.0).kind) is str


def test_a_curator_is_not_copied():
    """Hazard H19: every copy would count for itself."""
    curator = opened(rows_of([5.0, -3.0, 2.0]), gradient=1)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="paid for once"):
            copied(curator)


@pytest.mark.parametrize("wrong", [{"account": "none"}, {"epsilon": np.nan}, {"delta": np.nan}, {"epsilon": -1.0}])
def test_a_plan_of_no_account_or_no_figure_is_none(wrong):
    """Hazard H19: a sum over the plans of each account has to see every plan, and compare with figures."""
    step = StepPlan("s", "", 1, (), (GaussianReleases("gradient", 1000, 1.0),))
    figures = {"epsilon": 100.0, "delta": 1e-7, "account": "reserved"} | wrong
    with pytest.raises(dp.InvalidArgument):
        Plan(1, 0, 1, "substitute", (step,), **figures)


def test_what_a_prelude_leaves_over_ends_with_it():
    """Hazard H19: a step travels to every worker, and with it whatever its prelude kept."""

    class Keeps(DPCrankNicolson):
        def prelude_requests(self):
            return [ReleaseRequest("gradient", 1, 0.5, 2, once=True)]

        def sampler_requests(self, tune, draws):
            return [ReleaseRequest("log_ratio", tune + draws, 0.5, 1)]

        def prelude(self):
            self.kept = self.chain

        def transition(self, theta):
            self.kept.gradient(theta, 1.0)

    with rows_model([5.0, -3.0, 2.0]):
        step = Keeps(budget=dp.PrivacyBudget(1.0, 1e-6), clip_log_ratio=1.0, beta=0.5)
        with pytest.raises(dp.RunInterrupted, match="NoPlan"):
            dp.sample(step=step, draws=2, chains=1, cores=1, progressbar=False)
    with pytest.raises(dp.NoPlan, match="has ended"):
        step.kept.gradient(np.zeros(2), 1.0)


class Boasting(dp.DPPenalty):
    """Says things of itself that are the package's to say."""

    @property
    def facts(self):
        return {"epsilon": 0.001, "private": 1, "sampler": "another", "weather": "fine"}


def test_what_a_sampler_says_of_itself_replaces_nothing_that_is_said_of_the_guarantee():
    """Hazard H32: metadata of the guarantee are the package's own."""
    with gaussian_model(gaussian_data(50)):
        step = Boasting(clip_log_ratio=4.0, proposal_scale=0.1, budget=dp.PrivacyBudget(4.0, 1e-6), insecure_seed=3)
        facts = dp.sample(draws=4, chains=2, cores=1, step=step, **QUIET)["privacy"].attrs
    assert facts["epsilon"] > 3.0
    assert facts["private"] == 0
    assert facts["sampler"] == "dp_penalty"
    assert facts["weather"] == "fine"


class Twice(dp.DPPenalty):
    """Releases log-ratios before its chains, too."""

    def prelude_requests(self):
        return [dataclasses.replace(self.sampler_requests(0, 1)[0], share=0.0, once=True)]


class Greedy(dp.DPPenalty):
    """Wants more than there is."""

    def sampler_requests(self, tune, draws):
        return [dataclasses.replace(each, share=1.5) for each in super().sampler_requests(tune, draws)]


@pytest.mark.parametrize(("make", "message"), [(Twice, "both before its chains and in them"), (Greedy, "more than 1")])
def test_requests_that_cannot_be_kept_are_refused_before_the_charge(make, message):
    budget = dp.PrivacyBudget(4.0, 1e-6)
    with gaussian_model(gaussian_data(50)):
        step = make(clip_log_ratio=4.0, proposal_scale=0.1, budget=budget)
        with pytest.raises(dp.InvalidArgument, match=message):
            dp.sample(draws=4, chains=2, cores=1, step=step, **QUIET)
    assert not budget.history
