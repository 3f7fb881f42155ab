"""Every experiment runs, reduced; what is stored, and what is cheap to compute, has what the sources print."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import logistic, norm

from experiments import (
    accounting,
    clipping,
    common,
    comparison,
    contours,
    marginals,
    minibatch_tests,
    phase_space,
    stochastic_gradients,
)
from pymc_dp.diagnostics import maximum_mean_discrepancy
from pymc_dp.release.barker_correction import POINTS, WEIGHTS

STORED = Path(common.__file__).parent / "results"


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def numbers(rows, name):
    return np.array([float(row[name] or "nan") for row in rows])


@pytest.mark.parametrize(
    ("experiment", "files"),
    [
        pytest.param(accounting, {"accounting_iterations.png", "accounting_trade_off.png"}, marks=pytest.mark.slow),
        pytest.param(clipping, {"clipping_log_ratios.png", "clipping_gradients.png"}, marks=pytest.mark.slow),
        pytest.param(phase_space, {"phase_space_within.png", "phase_space_energies.png"}, marks=pytest.mark.slow),
        pytest.param(minibatch_tests, {"minibatch_tests.png", "barker_tail.csv"}, marks=pytest.mark.slow),
        pytest.param(contours, {"trajectory.png", "contours.png"}, marks=pytest.mark.slow),
        pytest.param(marginals, {"marginals.csv", "marginals.png"}, marks=pytest.mark.slow),
        pytest.param(comparison, {"comparison.csv", "comparison_bananas.png"}, marks=pytest.mark.nightly),
        pytest.param(stochastic_gradients, {"softmax_grid.png", "softmax_posteriors.png"}, marks=pytest.mark.slow),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_every_experiment_runs_reduced_and_goes_on_where_it_stopped(experiment, files, tmp_path):
    given = ["--reduced", "--into", str(tmp_path)]
    experiment.main(given)
    assert files <= {path.name for path in tmp_path.iterdir()}
    tables = {path.name: path.read_text() for path in tmp_path.glob("*.csv")}
    experiment.main(given)  # all cells are there
    assert {path.name: path.read_text() for path in tmp_path.glob("*.csv")} == tables
    for name in tables:  # what is stored has the same columns
        assert rows_of(tmp_path / name)[0].keys() == rows_of(STORED / name)[0].keys()


def test_a_table_keeps_its_cells_and_finds_them_again(tmp_path):
    path = tmp_path / "table.csv"
    table = common.Table(path, ("target", "epsilon"), ("mmd",))
    table.add({"target": "circle", "epsilon": 1.0, "mmd": 0.25})
    table.add({"target": "circle", "epsilon": 2.0, "mmd": math.nan})
    again = common.Table(path, ("target", "epsilon"), ("mmd",))
    assert again.has(target="circle", epsilon=1)
    assert not again.has(target="circle", epsilon=3.0)
    np.testing.assert_equal(again.column("mmd", target="circle"), [0.25, math.nan])


def test_the_squared_discrepancy_has_the_package_s_root_and_is_negative_for_equal_laws_half_of_the_time():
    generator = np.random.default_rng(3)
    shifted, reference = generator.normal(0.5, 1.0, size=(300, 2)), generator.normal(size=(400, 2))
    found = common.squared_discrepancy(shifted, reference)
    assert math.sqrt(found) == pytest.approx(maximum_mean_discrepancy(shifted, reference), rel=1e-12)
    squares = [common.squared_discrepancy(*generator.normal(size=(2, 100, 2))) for _ in range(60)]
    assert 15 <= sum(square < 0.0 for square in squares) <= 45  # less than one false alarm in 10,000 about a half
    equal = common.distances(*generator.normal(size=(2, 100, 2)))
    assert equal["mmd_absolute"] >= equal["mmd"]


@pytest.mark.few(1)
@pytest.mark.parametrize("epsilon", [1, 3, 6])
def test_iterations_are_those_of_the_published_curves(epsilon):
    """Räisä (2021), Figure 6.1; its curves are read to within an iteration."""
    found = accounting.iterations(float(epsilon))
    for quantity, curve in common.published("iterations").items():
        printed = dict(curve)[epsilon]
        if not quantity.startswith("minibatch"):
            assert found[quantity] == pytest.approx(printed, abs=1.5), quantity
    pairs = dict(common.published("iterations")["minibatch_adp"])
    assert found["minibatch_published_pair"] == pytest.approx(pairs[epsilon], abs=1.5)
    assert found["minibatch_adp"] >= found["minibatch_published_pair"]
    short = dict(common.published("iterations")["minibatch_rdp"])
    assert found["minibatch_rdp_short"] == pytest.approx(short[epsilon], abs=2.5)
    assert found["minibatch_rdp"] <= found["minibatch_rdp_short"]


PRINTED = common.published("lode")["table_6_3a"]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("delta", "pld", "moments"), list(zip(PRINTED["delta"], PRINTED["pld"], PRINTED["moments"], strict=True))
)
def test_the_moments_bound_is_within_two_per_cent_of_the_printed_column_and_the_other_column_is_met(
    delta, pld, moments
):
    """Lode (2019), Table 6.3 (a)."""
    assert accounting.by_loss_distribution(200, delta) == pytest.approx(pld, abs=1e-3)
    assert accounting.by_moments(200, delta) == pytest.approx(moments, rel=0.025)


def test_private_softmax_regressions_cost_what_the_accountant_says_and_are_as_accurate():
    """Lode (2019), Table 6.2 prints 9.789; dp_accounting's loss distributions give 9.2378 for her settings."""
    stored = rows_of(STORED / "softmax.csv")
    of_table = [row for row in stored if row["epsilon_printed"]]
    assert of_table
    for row in of_table:
        assert float(row["epsilon"]) == pytest.approx(9.2378, rel=2e-3)
        assert float(row["epsilon"]) == pytest.approx(float(row["epsilon_printed"]), rel=0.06)
    plain = {row["method"]: float(row["accuracy"]) for row in stored if not row["epsilon"]}
    private = numbers(of_table, "accuracy")
    assert plain["commonest class"] + 0.1 < private.min()
    assert private.mean() > plain["softmax regression"] - 0.02


def test_clipped_sums_are_those_of_the_likelihood():
    """The compiled sum, and its share of clipped units, against the densities of SciPy."""
    generator = np.random.default_rng(2)
    rows = generator.normal([0.0, 3.0], [2.0, 1.0], size=(500, 2))
    old, new, precision = np.array([0.0, 3.0]), np.array([0.2, 2.9]), np.diag([1.0 / 4.0, 1.0])
    ratios = (norm.logpdf(rows, new, [2.0, 1.0]) - norm.logpdf(rows, old, [2.0, 1.0])).sum(axis=1)
    slope = precision @ (new - old)
    total, clipped = clipping.clipped_sum(rows, slope, -slope @ (old + new) / 2.0, 0.1)
    assert total == pytest.approx(np.clip(ratios, -0.1, 0.1).sum(), rel=1e-9)
    assert clipped == (np.abs(ratios) > 0.1).sum()
    assert 0 < clipped < len(rows)


def test_a_clipped_gradient_of_rows_that_are_not_symmetric_has_its_zero_elsewhere():
    """The rule of 20 % fails for gradients: 0.2 % of clipped units move the coefficient of a rare feature."""
    stored = rows_of(STORED / "clipping_gradients.csv")

    def shift(name, fraction):
        (row,) = (r for r in stored if r["rows"] == name and float(r["fraction"]) == fraction)
        return float(row["clipped"]), float(row["shift_sd"])

    clipped, moved = shift("logistic, rare feature", 0.005)
    assert 0.0 < clipped < 0.003
    assert moved > 2.0
    assert shift("normal mean", 0.2)[1] < 1.0 < shift("logistic, balanced", 0.2)[1]


def test_clipping_log_ratios_below_a_fifth_hardly_moves_draws():
    rows = [r for r in rows_of(STORED / "clipping.csv") if r["target"] == "banana-2" and r["rule"] == "euclidean"]
    shares, found = numbers(rows, "fraction"), numbers(rows, "mmd_absolute")
    few, many = found[shares < 0.01], found[(shares > 0.02) & (shares < 0.2)]
    assert len(few) > 5
    assert np.median(many) < np.median(few) + 0.05


def test_exact_trajectories_keep_their_energy_and_batches_do_not():
    rows = {
        (r["figure"], int(r["batch_size"]), r["friction"]): float(r["energy"])
        for r in rows_of(STORED / "phase_space.csv")
    }
    assert rows["6.3", 500, "none"] == pytest.approx(1.0, abs=0.02)
    assert rows["6.3", 10, "none"] > 10 * rows["6.3", 50, "none"] > 100 * rows["6.3", 250, "none"]
    assert rows["6.4", 50, "none"] < rows["6.3", 50, "none"] / 100
    assert rows["6.5", 50, "matched"] < 3.0 < rows["6.5", 50, "published"]


def test_the_tail_of_the_barker_correction_is_too_heavy_seven_times():
    """At -10, by the logistic distribution and the points of the correction."""
    points = np.array([-POINTS[2], -POINTS[1], *POINTS])
    weights = np.array([WEIGHTS[2] / 2, WEIGHTS[1] / 2, WEIGHTS[0], WEIGHTS[1] / 2, WEIGHTS[2] / 2])
    times = float(weights @ norm.cdf((-10.0 - points) / math.sqrt(2.0)) / logistic.cdf(-10.0))
    accepted, wanted = minibatch_tests.tail(-10.0)
    assert accepted / wanted == pytest.approx(times, rel=1e-6)
    assert times == pytest.approx(7.2, abs=0.05)


def test_the_penalty_test_is_balanced_for_normal_errors_of_known_variance():
    generator = np.random.default_rng(0)
    errors = generator.normal(size=200_000)
    for log_ratio in (0.0, 2.0):
        assert abs(minibatch_tests.imbalance(errors, np.ones_like(errors), log_ratio)) < 0.02
        assert abs(minibatch_tests.imbalance(errors, np.full_like(errors, 0.5), log_ratio)) < 0.02 or log_ratio > 0.0
    assert abs(minibatch_tests.error_of_barker(errors[:4000], np.ones(4000), 1.0)) < 0.02
    assert expit(1.0) == pytest.approx(0.731, abs=1e-3)


def test_published_settings_name_every_sampler_of_a_figure():
    boxes = common.published("boxes")
    assert boxes["columns"][:4] == ["figure", "target", "sampler", "epsilon"]
    for figure, target, sampler, *_ in boxes["rows"]:
        if figure in ("6.3", "6.4"):
            assert sampler in comparison.originals(target)
    assert {target for target in comparison.TARGETS if comparison.originals(target)} == set(comparison.TARGETS)


def test_the_stored_comparison_has_the_published_order_on_the_flat_banana():
    """Räisä (2021), Figure 6.3: tests on batches are not useful without tempering."""
    rows = [r for r in rows_of(STORED / "comparison.csv") if r["kind"] == "originals" and r["epsilon"] == "4"]
    assert {row["target"] for row in rows} >= {"banana-2", "banana-10", "banana-narrow", "normal-2"}
    of = {
        sampler: np.nanmedian(
            numbers([r for r in rows if (r["target"], r["sampler"]) == ("banana-2", sampler)], "mmd_absolute")
        )
        for sampler in comparison.originals("banana-2")
    }
    assert max(of["hmc"], of["penalty"], of["penalty-guided"]) < min(
        of["minibatch"], of["minibatch-guided"], of["barker"]
    )


def test_the_page_shows_every_stored_figure():
    page = (Path(common.__file__).parents[1] / "docs" / "experiments.md").read_text(encoding="utf-8")
    for figure in STORED.glob("*.png"):
        assert f"../experiments/results/{figure.name}" in page, figure.name
    assert json.loads((STORED / "published.json").read_text(encoding="utf-8"))["about"]
