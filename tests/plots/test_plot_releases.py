"""The way of a prelude is drawn as it was released."""

import numpy as np
import pytest
from plotted_runs import MATPLOTLIB, N, axes, counted, drawn, searched
from scipy import stats

import pymc_dp as dp
from pymc_dp.plots import plot_releases

STAGES = ("bounded_score", "approach", "centre", "score")
SIGMA = "sigma_log__"


def released(kind):
    """What was released of a kind, by its order among all releases."""
    group = searched()["releases"].to_dataset()
    columns = [group[f"{kind}_{name}"].values for name in ("order", "position", "noise_std")]
    return {int(order): (kind, *rest) for order, *rest in zip(*columns, strict=True)}


def way():
    """Kinds, positions and noise, in order."""
    stops = {}
    for kind in STAGES:
        stops |= released(kind)
    return [stops[order] for order in sorted(stops)]


def labels():
    return [str(label) for label in searched()["releases"]["parameter"].values]


def test_releases_say_their_order():
    """Of all kinds together: no two have the same place, and none is left out."""
    group = searched()["releases"].to_dataset()
    orders = np.concatenate([np.atleast_1d(group[name].values) for name in group.coords if name.endswith("_order")])
    np.testing.assert_array_equal(np.sort(orders), np.arange(len(orders)))


def test_the_way_begins_with_votes_and_ends_at_the_centre():
    """The first votes move the logarithm of sigma alone: in another order they would not be neighbours."""
    stops = way()
    assert [kind for kind, *_ in stops[:9]] == ["bounded_score"] * 8 + ["approach"]
    assert stops[-1][0] == "score"
    moves = np.diff([position for _, position, _ in stops[:8]], axis=0)
    sigma = labels().index(SIGMA)
    assert (moves[:, sigma] != 0.0).all()
    assert (np.delete(moves, sigma, axis=1) == 0.0).all()
    np.testing.assert_allclose(np.abs(moves[:, sigma]), 8.0 / 2.0 ** np.arange(7))


def test_every_parameter_has_its_values_on_the_way():
    collection = plot_releases(searched(), **MATPLOTLIB)
    assert list(axes(collection)) == ["length of the score", *labels()]
    for place, label in enumerate(labels()):
        line = drawn(collection, f"way_{label}")
        np.testing.assert_array_equal(line.get_xdata(), np.arange(len(way())))
        np.testing.assert_array_equal(line.get_ydata(), [position[place] for _, position, _ in way()])


def test_stages_have_their_own_marks():
    found = plot_releases(searched(), **MATPLOTLIB).viz[f"points_{SIGMA}"]["panels"]
    marked = {
        str(stage): np.isfinite(mark.get_offsets()[:, 0].filled(np.nan)).sum()
        for stage, mark in zip(found["stage"].values, found.values, strict=True)
    }
    votes = sum(kind == "bounded_score" for kind, *_ in way())
    assert marked == {"vote": votes, "step": len(way()) - votes - 1, "centre": 1}


def test_scores_are_compared_with_the_length_of_their_noise():
    collection = plot_releases(searched(), **MATPLOTLIB)
    group = searched()["releases"].to_dataset()
    last = np.linalg.norm(group["score"].values[0]) / (group["score_noise_std"].values[0] * np.sqrt(len(labels())))
    assert drawn(collection, "way_length of the score").get_ydata()[-1] == pytest.approx(last)
    assert drawn(collection, "noise_alone_length of the score").get_ydata() == [1.0, 1.0]


def test_bars_are_the_noise_of_the_step_that_led_there():
    """Two standard deviations, and only of steps after the last vote: of the last one here."""
    collection = plot_releases(searched(), **MATPLOTLIB)
    likelihood = dp.PrivateLikelihood(searched())
    alone, std = (np.sqrt(np.diag(each)) for each in (likelihood.without_noise, likelihood.covariance))
    _, _, noise_std = way()[-2]
    for place, label in enumerate(labels()):
        low, high, _ = drawn(collection, f"noise_{label}").get_ydata()[-3:]
        assert high - low == pytest.approx(4.0 * noise_std / np.sqrt(N) * alone[place])
        band = drawn(collection, f"posterior_{label}")
        limits = float(likelihood.mean[place]) + std[place] * stats.norm.ppf([0.05, 0.95])
        np.testing.assert_allclose([band.get_y(), band.get_y() + band.get_height()], limits)


def test_parameters_are_chosen_by_name():
    collection = plot_releases(searched(), var_names="beta", filter_vars="like", **MATPLOTLIB)
    assert list(axes(collection)) == ["length of the score", "beta[0]", "beta[1]"]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (counted, "no prelude whose path could be drawn"),
        (lambda: searched().drop_nodes("releases"), "no group `releases`"),
        (lambda: searched().drop_nodes("privacy"), "no group `privacy`"),
    ],
)
def test_runs_without_a_way_say_so(tree, message):
    with pytest.raises(dp.InvalidArgument, match=message):
        plot_releases(tree(), backend="none")
