"""Private searches alone, one after another in one run, without chains."""

from unittest import mock

import pymc as pm
import pytest
from conftest import QUIET

import pymc_dp as dp
from pymc_dp.release import InsecureNoise
from pymc_dp.steps.access import ChainAccess
from pymc_dp.steps.prelude.learning import Learning


class _AllMade(Exception):
    """Ends a run after its searches."""


def centres_of(model, runs, **settings):
    """Return where as many searches at epsilon 4 lead to."""
    centres = []

    def searches(self, chain, noise_per_bound, tempering):
        authorisation = chain._authorisation
        for seed in range(runs):
            curator = authorisation.curators._make_curator(noise=InsecureNoise(seed), **authorisation.curators._once)
            centres.append(self.expand(ChainAccess(authorisation, curator, chain._own), tempering).start)
        raise _AllMade

    with model, mock.patch.object(Learning, "run", searches):
        step = dp.DPSurrogateHMC(budget=dp.PrivacyBudget(4.0, 1e-6), **settings)
        with pytest.raises(dp.exceptions.RunInterrupted):
            pm.sample(draws=10, step=step, chains=1, cores=1, **QUIET)
    return centres
