"""Every sampler is replayed on neighbours; and the replay sees the faults that it is there for."""

import functools
import itertools
import warnings
from unittest import mock

import numpy as np
import pymc as pm
import pytest
from contributed import DPCrankNicolson
from neighbours import Neighbour, neighbours_of, ordinary_rows
from replay import replay
from samplers import LEARNED
from zoo import (
    BY_NAME,
    GAUSSIAN,
    PERSONS,
    REGRESSION,
    SIMULATING,
    TWO_ON_BATCHES,
    ZOO,
    Case,
    tested_surrogate,
)

from pymc_dp.release import MeteredCurator, curator as curator_module
from pymc_dp.release.batches import drawn
from pymc_dp.release.meter import Meter
from pymc_dp.release.query import SENSITIVITY_FACTOR, Query
from pymc_dp.rows import clip, likelihood
from pymc_dp.rows.clipped_sum import ClippedSum
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.run import sampling
from pymc_dp.steps.access import ChainAccess

#: Where chains start, and how loud the answers are that lead them on: near, far, and driven far.
PLACES = ({}, {"start_scale": 30.0}, {"loudness": 300.0}, {"start_scale": 1e3, "loudness": 1e-3})


def replayed(case, sampler, relation, count, *, seed=0, **settings):
    rng = np.random.default_rng(seed)
    table = case.table(rng)
    neighbours = neighbours_of(table, relation, rng, count, case.unit)
    settings = {"epsilon": 50.0, "unit_index": case.unit, "relation": relation, "seed": seed} | settings
    return replay(case.build, table, neighbours, sampler, **settings)


def clean(report):
    assert not report.refused
    assert report.violations == []
    assert report.moved  # else nothing was compared
    return True


def combinations(samplers):
    return [
        pytest.param(sampler, relation, id=f"{sampler}-{relation}")
        for sampler in samplers
        for relation in sampler.relations
    ]


EVERY = [*BY_NAME.values(), TWO_ON_BATCHES]


@pytest.mark.slow
@pytest.mark.few(slow=29)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(k, marks=pytest.mark.nightly) for k in range(2, len(PLACES)))])
@pytest.mark.parametrize(("sampler", "relation"), combinations(EVERY))
def test_every_sampler(sampler, relation, seed):
    """Hazards H13, H23 and H34: on every value that is noised, with frozen answers."""
    report = replayed(REGRESSION, sampler, relation, 3, seed=seed, **PLACES[seed])
    assert clean(report)
    if sampler.on_batches and sampler.name != "barker":  # it takes part in some batches, not in all
        assert report.moved < sum(each.releases for each in report.comparisons)


@pytest.mark.few(3)
@pytest.mark.parametrize(("sampler", "relation"), combinations([BY_NAME[name] for name in ("hmc", "sgld", "barker")]))
def test_all_of_the_declared_sensitivity_is_reached_and_no_more(sampler, relation):
    """Hazard H12: rows that are clipped, in opposite directions: the sum moves by all that is paid for."""
    table = REGRESSION.table(None)
    table["x"][17], table["y"][17] = 1.0, 1e9
    opposite = {name: values.copy() for name, values in table.items()}
    opposite["y"][17] = -1e9
    change = "replaced"
    if relation == "add-remove":
        opposite, change = {name: np.delete(values, 17) for name, values in table.items()}, "removed"
    report = replay(
        REGRESSION.build, table, [Neighbour(opposite, change, 17)], sampler, relation=relation, draws=20, epsilon=99.0
    )
    assert clean(report)
    assert report.comparisons[0].largest > (0.02 if sampler.name == "barker" else 0.998)


def learned():
    """Return which runs are made by CI: every sampler with control variates once, one of them under add-remove."""
    for sampler in LEARNED:
        for relation in sampler.relations:
            ci = sampler.control_variates if relation == "substitute" else sampler is LEARNED[0]
            yield pytest.param(sampler, relation, id=f"{sampler}-{relation}", marks=[] if ci else pytest.mark.nightly)


@pytest.mark.few(slow=5)
@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "relation"), list(learned()))
def test_what_samplers_learn_and_release_beyond_an_expansion(sampler, relation):
    """Hazards H13, H20, H23 and H34: on a likelihood that is not normal, so that its expansion misses something."""
    report = replayed(ZOO[3], sampler, relation, 3)
    assert clean(report)
    assert report.first.tree["privacy"].attrs["surrogate_found"] == 1
    moved = frozenset().union(*(each.moved_kinds for each in report.comparisons))
    assert {event.kind for event in report.first.plan.steps[0].in_chains} - {"clip_count"} <= moved


OF_EACH_SORT = ("learned-hmc", "learned-minibatch-penalty", "learned-sghmc")


@pytest.mark.nightly
@pytest.mark.parametrize("case", ZOO, ids=repr)
@pytest.mark.parametrize("sampler", [each for each in LEARNED if each.name in OF_EACH_SORT], ids=repr)
def test_samplers_that_learn_on_models_of_many_kinds(sampler, case):
    for seed, place in enumerate(PLACES):
        assert clean(replayed(case, sampler, "substitute", 3, seed=seed, **place))


FEW = [BY_NAME[name] for name in ("hmc", "sgld", "minibatch-penalty", "barker")]


def kinds():
    """Return what is replayed when: in the plain tests units of several rows, and a hierarchy by one sampler."""
    for one in combinations(FEW):
        for case in ZOO:
            when = [] if case is PERSONS or (case is ZOO[1] and one.id == "hmc-substitute") else [pytest.mark.slow]
            when = [pytest.mark.nightly] if when and case is ZOO[1] else when
            yield pytest.param(*one.values, case, id=f"{one.id}-{case!r}", marks=when)


@pytest.mark.few(slow=24)
@pytest.mark.parametrize(("sampler", "relation", "case"), list(kinds()))
def test_models_of_many_kinds(case, sampler, relation):
    assert clean(replayed(case, sampler, relation, 3 if sampler.on_batches else 1))


@pytest.mark.slow
@pytest.mark.production
@pytest.mark.parametrize("case", [ZOO[0], ZOO[1], PERSONS], ids=repr)
def test_loops_made_for_the_model(case):
    for sampler in FEW:
        for relation in sampler.relations:
            assert clean(replayed(case, sampler, relation, 2))


@pytest.mark.nightly
@pytest.mark.production
@pytest.mark.parametrize("case", ZOO, ids=repr)
def test_loops_made_for_models_of_many_kinds(case):
    for sampler in FEW:
        for relation in sampler.relations:
            assert clean(replayed(case, sampler, relation, 4))


@pytest.mark.nightly
@pytest.mark.parametrize("case", ZOO, ids=repr)
def test_expansions_of_models_of_many_kinds(case):
    for sampler in (BY_NAME["surrogate"], tested_surrogate(case)):
        assert clean(replayed(case, sampler, "substitute", 3))


@pytest.mark.few(slow=1)
@pytest.mark.slow
@pytest.mark.parametrize("relation", ["substitute", "add-remove"])
def test_expansions(relation):
    assert clean(replayed(PERSONS, BY_NAME["surrogate"], relation, 3))
    assert clean(replayed(ZOO[1], tested_surrogate(ZOO[1]), relation, 3))
    assert clean(replayed(GAUSSIAN, SIMULATING, relation, 3))


def test_graphs_that_differ_are_compiled_anew():
    """A table that is written into the likelihood shows, though compiled functions are used again."""

    def build(rows):
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("mu") + float(rows["y"].mean()), 1.0, observed=rows["y"])
        return model

    leaking, rng = Case("leaking", build, GAUSSIAN.table), np.random.default_rng(0)
    table = leaking.table(rng)
    neighbour = far_out(leaking, table, "substitute", rng, 1.0)
    report = replay(leaking.build, table, [neighbour], BY_NAME["hmc"], epsilon=50.0)
    assert any("moved" in violation for violation in report.violations)


# Faults, each of which the replay has to see -----------------------------------------------------------------------


class BranchesOnAnExactValue(DPCrankNicolson):
    """Goes another way where the exact sum is even."""

    def transition(self, theta):
        found = super().transition(theta)
        exact = self.chain._curator._rows.clipped_gradient(theta, 4.0, 2.0**-40).integers
        found.theta = found.theta + 1e-3 * (int(exact[0]) % 2)
        return found


class BoundFromRows(DPCrankNicolson):
    """Asks for a bound that one row decides."""

    def transition(self, theta):
        logs = self.chain._curator._rows.all_log_likelihoods(theta)
        self.clip_log_ratio = 4.0 * (1.0 + 1e-9 * float(np.nanmax(np.nan_to_num(logs, posinf=0.0, neginf=0.0))))
        return super().transition(theta)


class PublishesAnExactSum(DPCrankNicolson):
    """Puts an exact statistic beside the released ones."""

    def transition(self, theta):
        found = super().transition(theta)
        exact = self.chain._curator._rows.clipped_gradient(theta, 1.0, 2.0**-40)
        found.stats["acceptance_rate"] = float(exact.value[0])
        return found


class OneReleaseMoreForLongRows(DPCrankNicolson):
    """Asks once more where a row is clipped."""

    def transition(self, theta):
        found = super().transition(theta)
        if self.chain._curator._rows.clipped_gradient(theta, 50.0, 2.0**-40).n_clipped:
            self.chain.log_ratio(theta, theta + 1.0, 1.0)
        return found


def contributed(step_class):
    return lambda **shared: step_class(clip_log_ratio=4.0, beta=0.05, **shared)


def patched(target, name, new):
    return lambda: mock.patch.object(target, name, new)


def clips_the_sum(rows, theta, bound, grid, *, units=None, blocks=None):
    """The sum is clipped as a whole, to what n units may contribute."""
    found = real_gradient(rows, theta, 1e6, grid, units=units, blocks=blocks)
    most = rows.n_units * bound / grid
    length = float(np.linalg.norm(found.integers.astype(float)))
    shorter = np.trunc(found.integers * min(1.0, most / max(length, 1.0))).astype(np.int64)
    return ClippedSum(shorter, grid, bound, found.n_clipped)


real_gradient = UnitLikelihood.clipped_gradient


def clips_rows_of_units(rows, *arguments, **options):
    """Each row of a unit is clipped by itself."""
    alone = rows.on_rows(rows._table.rows)
    return real_gradient(alone, *arguments, **{name: value for name, value in options.items() if name != "units"})


def forgets_the_batch(rows, *arguments, units=None, **options):
    return real_gradient(rows, *arguments, **options)


def raises_on_infinity(rows, theta, *arguments, **options):
    if not np.isfinite(rows.all_log_likelihoods(theta)).all():
        raise FloatingPointError("A row is not finite.")
    return real_gradient(rows, theta, *arguments, **options)


def warns_of_infinity(rows, theta, *arguments, **options):
    if not np.isfinite(rows.all_log_likelihoods(theta)).all():
        warnings.warn("A row is not finite.", RuntimeWarning, stacklevel=2)
    return real_gradient(rows, theta, *arguments, **options)


def written_out(slopes, vectors, indices, parts, sums):
    """Contributions as columns."""
    return clip.dense(slopes, vectors, indices, parts, sums.size)


def keeps_what_is_not_finite(slopes, vectors, squares, indices, parts, bound, steps, sums):
    columns = written_out(slopes, vectors, indices, parts, sums)
    with np.errstate(all="ignore"):
        norms = np.sqrt((columns**2).sum(axis=0))
        shorter = np.where(np.isfinite(norms), np.minimum(1.0, bound / norms), 1.0)
        sums += (columns * shorter * steps).astype(np.int64).sum(axis=1)
    return int(np.sum(shorter < 1.0))


def largest_entry_for_norm(slopes, vectors, squares, indices, parts, bound, steps, sums):
    columns = written_out(slopes, vectors, indices, parts, sums)
    with np.errstate(all="ignore"):
        shorter = np.nan_to_num(np.minimum(1.0, bound / np.abs(columns).max(axis=0)))
        sums += np.nan_to_num(columns * shorter * steps).astype(np.int64).sum(axis=1)
    return int(np.sum(shorter < 1.0))


def half_of_what_a_replacement_moves(self, terms):
    return 0.5 * SENSITIVITY_FACTOR[terms.relation]


def quieter(released):
    @functools.wraps(released)
    def with_less_noise(curator, query, noise_multiplier):
        return released(curator, query, 0.5 * noise_multiplier)

    return with_less_noise


def loose_log_ratios(rows, theta, theta_new, bound, grid, *, units):
    return real_log_ratios(rows, theta, theta_new, 15.0 * bound, grid, units=units)


real_log_ratios = UnitLikelihood.log_ratio_moments


def spends_nothing(self, *args, **kwargs):
    return None


def half_the_multiplier(chain, kind):
    return 0.5 * chain._authorisation.noise_multipliers[kind]


def draws_by_the_clock(batches, entropy, n_units):
    return np.sort((drawn(batches, entropy, n_units) + next(_CLOCK)) % n_units)


_CLOCK = itertools.count()


HMC, SGLD, CONTRIBUTED = BY_NAME["hmc"], BY_NAME["sgld"], BY_NAME["contributed"]
FAULTS = {
    "branches on an exact value": (REGRESSION, contributed(BranchesOnAnExactValue), {}, "theta"),
    "bound from rows": (REGRESSION, contributed(BoundFromRows), {}, "has another clip_bound"),
    "exact sum published": (REGRESSION, contributed(PublishesAnExactSum), {}, "another tree"),
    "more requests for long rows": (REGRESSION, contributed(OneReleaseMoreForLongRows), {}, "request|BudgetExceeded"),
    "sum clipped": (GAUSSIAN, HMC, {"breaking": (UnitLikelihood, "clipped_gradient", clips_the_sum)}, "moved"),
    "rows of units clipped": (
        PERSONS,
        HMC,
        {"breaking": (UnitLikelihood, "clipped_gradient", clips_rows_of_units)},
        "moved",
    ),
    "batch forgotten": (
        REGRESSION,
        SGLD,
        {"breaking": (UnitLikelihood, "clipped_gradient", forgets_the_batch)},
        "not in its batch",
    ),
    "raises": (REGRESSION, HMC, {"breaking": (UnitLikelihood, "clipped_gradient", raises_on_infinity)}, "ended with"),
    "warns": (REGRESSION, HMC, {"breaking": (UnitLikelihood, "clipped_gradient", warns_of_infinity)}, "warnings"),
    "NaN kept": (
        REGRESSION,
        HMC,
        {"breaking": (clip, "add_clipped", keeps_what_is_not_finite)},
        "moved",
    ),
    "wrong norm": (
        ZOO[2],
        HMC,
        {"breaking": (clip, "add_clipped", largest_entry_for_norm), "draws": 8, "chains": 2},
        "moved",
    ),
    "half the sensitivity": (
        GAUSSIAN,
        HMC,
        {"breaking": (Query, "factor", half_of_what_a_replacement_moves)},
        "moved",
    ),
    "half the noise": (
        GAUSSIAN,
        HMC,
        {"breaking": (MeteredCurator, "_noised", quieter(MeteredCurator._noised))},
        "moved",
    ),
    "log-ratios of a decision hardly clipped": (
        GAUSSIAN,
        BY_NAME["barker"],
        {"breaking": (UnitLikelihood, "log_ratio_moments", loose_log_ratios)},
        "moved",
    ),
    "counts that ride along weigh more": (
        GAUSSIAN,
        SGLD,
        {"breaking": (curator_module, "COUNT_WEIGHT", 0.5), "relation": "add-remove"},
        "moved",
    ),
    "batches that words do not decide": (
        REGRESSION,
        SGLD,
        {"breaking": (curator_module, "drawn", draws_by_the_clock)},
        "another batch",
    ),
    "less noise than was paid for": (
        REGRESSION,
        HMC,
        {"breaking": (ChainAccess, "multiplier", half_the_multiplier), "unmetered": True},
        "less noise than was paid for",
    ),
}


#: Other faults move the same sums; a wrong norm shows in longer runs alone.
AT_NIGHT = ("NaN kept", "wrong norm", "half the sensitivity")


@pytest.mark.few(10)
@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=pytest.mark.nightly if each in AT_NIGHT else []) for each in FAULTS]
)
def test_a_fault_is_seen(fault):
    """Hazards H13, H21, H23 and H34: bounds and moves that follow exact values, among others, are found."""
    case, make_step, settings, message = FAULTS[fault]
    settings = {"draws": 4, "chains": 1, **settings}
    relation = settings.pop("relation", "substitute")
    patches = [patched(*settings.pop("breaking"))] if "breaking" in settings else []
    if settings.pop("unmetered", False):
        patches.append(patched(Meter, "spend", spends_nothing))
    rng = np.random.default_rng(3)
    table = case.table(rng)
    extreme = [far_out(case, table, relation, rng, sign) for sign in (1.0, 0.0, np.inf, np.nan)]
    report = replay(
        case.build,
        far_out(case, table, "substitute", rng, -1.0).table if relation == "substitute" else table,
        extreme,
        make_step,
        relation=relation,
        unit_index=case.unit,
        epsilon=50.0,
        patches=patches,
        **settings,
    )
    assert not report.refused
    found = [violation for violation in report.violations if any(each in violation for each in message.split("|"))]
    assert found, report.violations


def far_out(case, table, relation, rng, sign):
    """Replace a unit by one that is clipped whatever the bound, or add it."""
    changed = {name: values.copy() for name, values in table.items()}
    known, rows_of = np.unique(table[case.unit], return_counts=True) if case.unit else (None, None)
    whose = known[np.argmax(rows_of)] if case.unit else None
    mine = np.flatnonzero(table[case.unit] == whose) if case.unit else np.array([0])
    if relation == "add-remove":
        fresh = ordinary_rows(table, 1, rng)
        changed = {name: np.concatenate([values, fresh[name]]) for name, values in table.items()}
        mine = np.array([len(changed["y"]) - 1])
    value = sign * 1e9 if abs(sign) == 1.0 else sign
    if changed["y"].dtype.kind == "f":
        changed["y"][mine] = value
    else:
        changed["x"][mine] = value
    place = int(np.argmax(rows_of)) if case.unit else int(mine[0])
    return Neighbour(changed, "added" if relation == "add-remove" else "replaced", place, f"{value} at {mine}")


def test_a_run_that_is_refused_says_so():
    def mixes(rows):
        with pm.Model() as model:
            y = pm.Data("y", rows["y"])
            pm.Normal("z", pm.Normal("mu") + y.mean(), 1.0, observed=rows["y"])
        return model

    report = replayed(Case("mixing", mixes, GAUSSIAN.table), HMC, "substitute", 2)
    assert "UnsupportedModel" in report.refused
    assert report.comparisons == []


def test_patches_do_not_outlive_a_run():
    before = [sampling.SecureNoise, sampling._pymc_sample, MeteredCurator.release, likelihood.RowGraphs]
    replayed(GAUSSIAN, HMC, "substitute", 1)
    assert [sampling.SecureNoise, sampling._pymc_sample, MeteredCurator.release, likelihood.RowGraphs] == before
