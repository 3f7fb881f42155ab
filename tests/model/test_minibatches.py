import numpy as np
import pymc as pm
import pytest
from conftest import QUIET, gaussian_data, hmc

import pymc_dp as dp
from pymc_dp.model.view import read
from pymc_dp.rows import UnitLikelihood

Y = gaussian_data(60)


def in_observed():
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=pm.Minibatch(Y, batch_size=20), total_size=60)


def in_data_variables():
    batch = pm.Minibatch(pm.Data("table", Y), batch_size=20)
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=batch, total_size=60)


def in_covariates():
    pm.Normal("y", pm.Normal("mu") * pm.Minibatch(Y, batch_size=60), 1.0, observed=Y)


def in_both():
    x, y = pm.Minibatch(np.ones(60), Y, batch_size=20)
    pm.Normal("y", pm.Normal("mu") * x, 1.0, observed=y, total_size=60)


def in_a_potential():
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1.0, observed=Y)
    pm.Potential("more", (mu * pm.Minibatch(Y, batch_size=20)).sum())


@pytest.mark.parametrize("write", [in_observed, in_data_variables, in_covariates, in_both, in_a_potential])
@pytest.mark.filterwarnings("ignore:total_size")
def test_minibatches_of_pymc_are_refused_with_what_to_write(budget, write):
    """Hazard H10: they are drawn with replacement, for which nothing is accounted."""
    with pm.Model() as model:
        write()
        with pytest.raises(dp.UnsupportedModel, match=r"with replacement.*batch_size="):
            pm.sample(draws=5, chains=1, cores=1, step=hmc(budget), **QUIET)
    with pytest.raises(dp.UnsupportedModel, match=r"pm\.Minibatch"):
        UnitLikelihood(read(model))
    assert budget.history == ()


@pytest.mark.parametrize("total_size", [60, 600])
def test_a_likelihood_that_is_multiplied_is_refused(budget, total_size):
    """Hazard H15: `total_size` would multiply a row's contribution."""
    with pm.Model():
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=Y, total_size=total_size)
        with pytest.raises(dp.UnsupportedModel, match="total_size="):
            pm.sample(draws=5, chains=1, cores=1, step=hmc(budget), **QUIET)
    assert budget.history == ()
