"""Results of short runs on simulated tables, made once, and what a figure holds."""

import functools

import matplotlib as mpl
import numpy as np
import pymc as pm
from conftest import QUIET, gaussian_data, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp.diagnostics import Quality

mpl.use("Agg")
mpl.rcParams["figure.max_open_warning"] = 0
N = 600
MATPLOTLIB = {"backend": "matplotlib"}


def regression(seed):
    """Unknown sigma, so that there are votes, and a part that is between 0 and 1."""
    generator = np.random.default_rng(seed)
    x = np.column_stack([np.ones(N), generator.uniform(-1.0, 1.0, N)])
    with pm.Model(coords={"feature": ["intercept", "slope"]}) as model:
        beta = pm.Normal("beta", 0.0, 5.0, dims="feature")
        part = pm.Beta("part", 20.0, 20.0)
        sigma = pm.HalfNormal("sigma", 3.0)
        y = x @ [2.0, 1.0] + 0.7 * generator.normal(size=N)
        pm.Normal("y", pm.Data("x", x) @ beta + part, sigma, observed=y)
    return model


@functools.cache
def searched():
    """A run with a prelude: votes, steps, a centre, and widened draws."""
    with regression(0):
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(20.0, 1e-6))
        return pm.sample(draws=40, chains=2, cores=1, step=step, **QUIET)


@functools.cache
def counted(clip_diagnostics="private"):
    """A run with settings that were given: counts of clipped units, no prelude."""
    with gaussian_model(gaussian_data(N)):
        step = hmc(dp.PrivacyBudget(20.0, 1e-6), clip_diagnostics=clip_diagnostics)
        return pm.sample(draws=30, tune=10, chains=2, cores=1, step=step, **QUIET)


def drawn(collection, name):
    """What was drawn under a name, one matplotlib artist."""
    node = collection.viz[name]
    return node["panels"].item() if "panels" in node else node


def axes(collection):
    """The panels by name."""
    return {str(name): collection.get_viz("plot", panel=name) for name in collection.viz["plot"]["panel"].values}


def words(collection):
    """All text of a figure that is seen: ticks beyond the limits of an axis have labels that are not drawn."""
    figure = collection.viz["figure"].item()
    figure.canvas.draw()
    every_axis = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    unseen = set()
    for axis in every_axis:
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low <= tick.get_loc() <= high:
                unseen |= {tick.label1, tick.label2}
    found = figure.findobj(mpl.text.Text)
    return [text for text in found if text.get_text().strip() and text.get_visible() and text not in unseen]


GOOD = {"draws": 400, "acceptance": 1.0, "r_hat": 1.01, "effective_draws": 380.0, "test_noise": 0.0}


@functools.cache
def forecast(widening=1.25, batches=False):
    """What a dry run may have found; of a run that is paid for in rho, or of one on batches."""
    budget = dp.PrivacyBudget(2.0, 1e-6)
    settings = {"clip_gradient": 1.0, "prelude": None, "clip_diagnostics": None}
    with gaussian_model(gaussian_data(N)):
        step = (
            dp.DPSGLD(step_size=1e-4, batch_size=60, budget=budget, **settings)
            if batches
            else dp.DPHMC(clip_log_ratio=1.0, step_size=0.1, n_leapfrog=2, budget=budget, **settings)
        )
        plan = budget.plan(step, draws=50, chains=2)
    quality = Quality(**GOOD, clip_fractions={}, widening=widening, widening_by_noise=widening)
    return dp.Forecast(plan, N, 3, 0.6, 1.1, 0.88, quality, 3.0)
