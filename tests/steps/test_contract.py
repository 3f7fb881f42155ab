"""What every sampler has to keep to, whatever it computes: planned, charged, noised, reproducible where asked."""

import functools
import multiprocessing
import pickle
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from conftest import QUIET
from neighbours import Neighbour
from published_names import unnamed
from replay import replay
from samplers import CANARY, LABEL, LEARNED, SAMPLERS, regression, table

import pymc_dp as dp
from pymc_dp.release import MeteredCurator
from pymc_dp.release.queries import ClipCounts, DecisionClipCounts
from pymc_dp.release.query import SumOverUnits
from pymc_dp.rows import UnitLikelihood
from pymc_dp.rows.expansion import UnitExpansion

#: Learned samplers share most of their code: one of each kind of release is tried at once, the others with the slow
#: tests, and those without control variates at night.
_AT_ONCE = ("learned-hmc", "learned-penalty", "learned-barker", "learned-sgnht")
_LEARNED = [
    each
    if each.name in _AT_ONCE
    else pytest.param(each, marks=pytest.mark.slow if each.control_variates else pytest.mark.nightly)
    for each in LEARNED
]
#: One of each kind of what samplers keep, and of what they release.
_KINDS = ("hmc", "surrogate", "sgnht", "barker", "learned-hmc")


def of(samplers):
    """Parametrise a test by sampler: all tests of a sampler stand together, so that one process records its runs."""
    return pytest.mark.parametrize("sampler", samplers, ids=repr, scope="module")


of_every_sampler = of([*SAMPLERS, *_LEARNED])
#: For what is not the sampler's own code: the others at night.
of_every_kind = of(
    [
        each if getattr(each, "name", "") in (*_KINDS, "") else pytest.param(each, marks=pytest.mark.nightly)
        for each in [*SAMPLERS, *_LEARNED]
    ]
)

DRAWS, TUNE = 6, 2


def budget_of(sampler, relation=None):
    return dp.PrivacyBudget(8.0, 1e-6, relation or sampler.relations[0])


def run(sampler, *, data=None, budget=None, chains=2, relation=None, random_seed=None, cores=1, **settings):
    options = {name: settings.pop(name) for name in ("mp_ctx", "callback") if name in settings}
    with regression(*(data or table())):
        step = sampler(budget or budget_of(sampler, relation), **settings)
        return pm.sample(
            draws=DRAWS,
            tune=TUNE,
            chains=chains,
            cores=cores,
            step=step,
            random_seed=random_seed,
            **(QUIET | options),
        )


SUMS = {
    UnitLikelihood: ("clipped_gradient", "clipped_log_ratio", "log_ratio_moments", "sum_over_units"),
    UnitExpansion: ("curvature", "clipping_loss", "residual", "residual_sizes", "residual_moments"),
}


@dataclass
class Recorded:
    """A run, what was released in it, and which sums over rows were taken."""

    budget: dp.PrivacyBudget
    tree: xr.DataTree | None = None
    spent: Counter = field(default_factory=Counter)
    made: list = field(default_factory=list)
    summed: list = field(default_factory=list)
    canary_before_the_charge: bool = False
    rows: UnitLikelihood | None = None


def recorded(sampler, chains=2, again=0):
    """Return a run with random_seed=1, recorded once for all tests that look at it; `again` asks for another one."""
    return _recorded(sampler, chains, again)


@functools.cache
def _recorded(sampler, chains, again):
    found = Recorded(budget_of(sampler))
    release = MeteredCurator.release

    def counted(self, query, *arguments):
        released = release(self, query, *arguments)
        if found.budget.history:
            found.spent[query.kind] += 1
            found.rows = self._rows
            if not isinstance(query, ClipCounts):
                found.made.extend(query.moves if isinstance(query, DecisionClipCounts) else [query])
        elif any(np.isin([CANARY, -CANARY], rows).any() for rows in self._rows._table.rows):
            found.canary_before_the_charge = True  # dry runs are on synthetic rows
        return released

    def noting(real):
        def noted(*arguments, **options):
            if found.budget.history:
                found.summed.append(real.__name__)
            return real(*arguments, **options)

        return noted

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(MeteredCurator, "release", counted)
        for owner, names in SUMS.items():
            for name in names:
                patches.setattr(owner, name, noting(getattr(owner, name)))
        found.tree = run(sampler, budget=found.budget, chains=chains, random_seed=1)
    return found


@functools.cache
def replayed(sampler, relation, every_row):
    """Return the replay on neighbours without one of the odd rows, and on a table of other rows altogether."""
    x, y = table()
    y[list(ODD)] = list(ODD.values())
    rows = {"x": x, "y": y}
    neighbours = []
    for place in ODD if every_row else [min(ODD)]:
        if relation == "substitute":
            other = 0.3 if every_row else np.nan  # one odd row for another: one replay of both
            neighbours.append(
                Neighbour({"x": x, "y": np.where(np.arange(len(y)) == place, other, y)}, "replaced", place)
            )
        else:
            without = {name: np.delete(values, place) for name, values in rows.items()}
            neighbours.append(Neighbour(without, "removed", place))
    if relation == sampler.relations[0]:
        neighbours.append(Neighbour(dict(zip("xy", table(offset=3.0), strict=True)), "replaced", 0, OTHER_TABLE))
    return replay(
        lambda rows: regression(rows["x"], rows["y"]),
        rows,
        neighbours,
        sampler,
        relation=relation,
        draws=DRAWS // 2,
        tune=TUNE // 2,
        chains=2 if every_row else 1,
        real_loop=True,
    )


#: By place.
ODD = {17: 1e6, 18: -np.inf, 19: np.nan}
OTHER_TABLE = "another table"


def steps_of(step):
    return step if isinstance(step, list) else [step]


@pytest.mark.few(slow=12)
@of_every_sampler
@pytest.mark.parametrize("chains", [2, *(pytest.param(chains, marks=pytest.mark.slow) for chains in (1, 3))])
def test_what_is_released_was_planned_and_charged(sampler, chains):
    found = recorded(sampler, chains)
    assert not found.canary_before_the_charge
    (plan,) = found.budget.history
    planned = Counter()
    for releases in plan.releases:
        planned[releases.kind] += releases.count
    if sampler in LEARNED:  # where a move leads beyond the surrogate nothing is asked
        assert found.spent.keys() == planned.keys()
        assert all(found.spent[kind] <= planned[kind] for kind in planned)
    else:
        assert found.spent == planned
    numbers = Counter()
    for query in found.made:
        if isinstance(query, SumOverUnits):
            numbers[query.kind] += query.size
    for kind, count in numbers.items():
        declared = sum(each.count * each.coordinates for each in plan.releases if each.kind == kind)
        assert count <= declared, f"{count} numbers of {kind} are released, and {declared} are accounted for"
    assert found.budget.epsilon_spent <= 8.0


@of_every_sampler
def test_rows_are_summed_as_often_as_was_charged(sampler):
    """Hazard H19: no gradient, acceptance test or correction looks at the rows beside the releases."""
    found = recorded(sampler)
    charged = sum(each.count for each in found.budget.history[0].releases if each.kind != "clip_count")
    if "barker" in sampler.name:  # its clip counts are of all units, at each of the moves
        charged += sum(each.count for each in found.budget.history[0].releases if each.kind == "decision")
    assert len(found.summed) == len(found.made)
    assert len(found.summed) <= charged if sampler in LEARNED else len(found.summed) == charged


def contributions_of(query, rows, units):
    """Return what units contribute to a sum before it is clipped, shape (units, size)."""
    found = []

    def noted(chunk):
        found.append(query.contributions(chunk).copy())
        return found[-1]

    rows.sum_over_units(noted, query.size, 1.0, 2.0**-30, units=units)
    return np.concatenate(found)


@of_every_sampler
def test_a_unit_contributes_the_same_whatever_other_units_there_are(sampler):
    """Hazard H15: to the last bit. A replay does not see it while the sum moves by less than declared."""
    found = recorded(sampler)
    asked = {query.kind: query for query in found.made if isinstance(query, SumOverUnits)}
    for kind, query in asked.items():
        whole = contributions_of(query, found.rows, None)
        for unit in range(0, len(whole), 9):
            alone = contributions_of(query, found.rows, np.array([unit]))
            assert np.array_equal(whole[[unit]], alone, equal_nan=True), f"a unit's {kind} depends on other units"


@of_every_sampler
def test_noise_follows_the_distance_of_a_move(sampler):
    """Hazard H20: the clip bound of a log-ratio is made for the move, and so is its noise, in double precision."""
    found = recorded(sampler)
    releases = found.tree["releases"]
    kinds = [kind for kind in releases.data_vars if kind.rstrip("_12") == "log_ratio"]
    if not kinds or sampler.on_batches or sampler in LEARNED:
        pytest.skip("no log-ratio of all units with a bound of the user's")
    assert found.budget.relation == "substitute"
    for kind in kinds:
        moves = (releases[f"{kind}_position_new"] - releases[f"{kind}_position"]).values
        noise_std = releases[f"{kind}_noise_std"].values
        assert noise_std.dtype == np.float64
        assert np.all(noise_std > 0.0)
        expected = found.budget.history[0].noise_multipliers[kind] * 2.0 * 4.0 * np.linalg.norm(moves, axis=1)
        np.testing.assert_allclose(noise_std, expected, rtol=1e-12)


@of_every_sampler
def test_a_run_that_does_not_fit_is_refused_and_a_second_one_too(sampler):
    """Hazards H2 and H18: a second call with the same budget finds it spent."""
    budget = recorded(sampler).budget
    spent = budget.epsilon_spent
    with pytest.raises(dp.BudgetExceeded):
        run(sampler, budget=budget)
    assert budget.epsilon_spent == spent


def everything_in(tree):
    for node in tree.subtree:
        yield from node.attrs.items()
        for name, variable in {**node.to_dataset().data_vars, **node.to_dataset().coords}.items():
            yield name, variable.values
            yield from variable.attrs.items()


@of_every_sampler
def test_no_private_input_is_in_the_tree(sampler):
    tree = recorded(sampler).tree
    secrets = np.concatenate(table())
    for name, value in everything_in(tree):
        assert LABEL not in f"{name}{value}"
        numbers = np.ravel(value)
        if numbers.dtype.kind == "f":
            assert not np.isin(numbers, secrets).any()
    assert set(tree["posterior"].data_vars) == {"intercept", "slope"}
    assert CANARY not in tree["posterior"]["slope"].values


@pytest.mark.few(20)
@of_every_sampler
@pytest.mark.parametrize(
    ("relation", "at_night"),
    [
        pytest.param("substitute", False, id="substitute"),
        pytest.param("add-remove", False, id="add-remove"),
        pytest.param("substitute", True, id="substitute-every-row", marks=pytest.mark.nightly),
        pytest.param("add-remove", True, id="add-remove-every-row", marks=pytest.mark.nightly),
    ],
)
def test_neighbours_move_every_release_by_no_more_than_declared(sampler, relation, at_night):
    """With PyMC's own loop; tests/privacy/test_replay.py has more neighbours and models."""
    if relation not in sampler.relations:
        pytest.skip("not accounted for under this relation")
    if relation == "add-remove" and sampler in LEARNED:
        pytest.skip("in test_replay.py, beside the default sampler here")
    every_row = at_night or sampler.name in _KINDS
    if relation == "add-remove" and not every_row and relation != sampler.relations[0]:
        pytest.skip("at night, and at every change of one of each kind")
    report = replayed(sampler, relation, every_row)
    assert report.problems == []
    odd = [each for each in report.comparisons if each.neighbour != OTHER_TABLE]
    assert len(odd) == (len(ODD) if every_row else 1)
    for comparison in odd:
        assert comparison.violations == []
        assert comparison.moved


@of_every_sampler
def test_two_tables_with_the_same_releases_publish_the_same_tree(sampler):
    """Hazards H7 and H22: any two tables: every row is another one, and none is odd; nor does a warning tell."""
    comparison = replayed(sampler, sampler.relations[0], sampler.name in _KINDS).comparisons[-1]
    assert comparison.neighbour == OTHER_TABLE
    assert comparison.published_alike
    assert not [each for each in comparison.violations if each.startswith(("ended", "warnings"))]


def draws(tree):
    return np.stack([tree["posterior"][name].values for name in ("intercept", "slope")])


@pytest.mark.few(3)
@of_every_kind
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=[pytest.mark.slow, pytest.mark.production])])
def test_an_insecure_seed_reproduces_in_processes_and_is_marked(sampler, context):
    if context not in multiprocessing.get_all_start_methods():
        pytest.skip("not on this system")
    if context == "spawn" and sampler.name not in ("surrogate", "barker", "learned-hmc"):
        pytest.skip("keeps what one of those keeps that are spawned")
    parallel = run(sampler, insecure_seed=3, cores=2, mp_ctx=context)
    alone = run(sampler, insecure_seed=3)
    assert np.array_equal(draws(alone), draws(parallel))
    assert not parallel["privacy"].attrs["private"]


@of_every_kind
@pytest.mark.entropy
def test_a_known_seed_does_not_determine_the_noise(sampler):
    if "barker" in sampler.name:
        pytest.skip("two decisions are often the same: see test_barker")
    one, other = (recorded(sampler, again=k).tree["releases"].to_dataset() for k in range(2))
    kinds = [name for name in one.data_vars if f"{name}_noise_std" in one]
    assert kinds
    for kind in kinds:
        assert np.ravel(one[kind].values)[0] != np.ravel(other[kind].values)[0]


@of_every_sampler
def test_a_step_carries_no_data_and_runs_only_when_paid_for(sampler):
    """Hazards H21 and H33: a sampler, and what it tunes, has the curator's answers alone."""
    x, y = table()
    with regression(x, y):
        for step in steps_of(sampler(budget_of(sampler))):
            raw = pickle.dumps(step)
            assert y[:2].tobytes() not in raw
            assert x[:2].tobytes() not in raw
            assert pickle.loads(raw).budget is None
            with pytest.raises(dp.NoPlan):
                step.setup_chain(np.random.default_rng(0), 0, 10)
            assert isinstance(step.clip_bounds, dict)


@of_every_sampler
def test_a_missing_budget_and_unknown_arguments_are_refused(sampler):
    with regression(*table()):
        with pytest.raises(dp.InvalidArgument, match="needs a budget"):
            pm.sample(draws=1, step=sampler(None), **QUIET)
        with pytest.raises(dp.InvalidArgument, match="no argument temperature"):
            sampler(budget_of(sampler), temperature=2)


@of_every_sampler
def test_statistics_and_metadata_are_whole(sampler, tmp_path):
    tree = recorded(sampler).tree
    stats = tree["sample_stats"]
    for name in ("accepted", "acceptance_rate", "noise_std", "log_ratio"):
        assert stats[name].sizes["draw"] == DRAWS
    facts = tree["privacy"].attrs
    assert facts["private"] == 1
    assert facts["epsilon"] <= 8.0
    assert "NOT PRIVATE" not in dp.diagnostics.privacy_report(tree)
    assert "draws, accepted" in dp.diagnostics.quality_report(tree)
    assert not unnamed(tree)  # docs/reference/statistics.md explains every name
    tree.to_netcdf(tmp_path / "run.nc")
    xr.testing.assert_equal(xr.open_datatree(tmp_path / "run.nc").load(), tree)
