r"""Differentially private MCMC with control variates: an expansion is released once, and its draws are free.

A prelude finds a centre and releases an expansion of the log-likelihood at it (`prelude`). With the exact prior it is a
surrogate of the posterior, whose draws are free. The error of the expansion is released at some draws; or every draw is
tested: the remainder of a unit's log-ratio beyond the expansion is small, and the penalty test releases the sum with
noise proportional to a bound on one of them.

========================  ==========================================================
symbol                    here
========================  ==========================================================
:math:`S`                 the free part of `target`: log-prior plus expansion
:math:`e_i`               the remainder of a unit's log-ratio beyond the expansion
:math:`c_e`               `bound` of one of them
========================  ==========================================================

Released in every iteration after tuning: the noisy sum of the e_i, where draws are tested; nothing else.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_dp import _validate
from pymc_dp.budget.plan import ReleaseRequest
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.centring import in_coordinates
from pymc_dp.model.context import Model, model_in_context
from pymc_dp.model.origins import refuse_tables_of_the_data
from pymc_dp.model.parameters import FloatArray
from pymc_dp.model.posterior import precision_of
from pymc_dp.steps.learning_step import LearningStep
from pymc_dp.steps.prelude.approximation import Approximation
from pymc_dp.steps.prelude.learning import Prelude
from pymc_dp.steps.prelude.newton import NotComputable
from pymc_dp.steps.prelude.settings import Shares
from pymc_dp.steps.transition import Transition, untested

#: Tuning iterations of NUTS for its step size: its mass matrix is known.
_TUNING_OF_NUTS = 300


class DPSurrogateHMC(LearningStep):
    """Differentially private Hamiltonian Monte Carlo on a surrogate of the posterior, which is released once.

    The only required argument is a budget: scales, directions, clip bounds and the centre are learned by small
    releases.

    Parameters
    ----------
    vars : sequence of variables, optional
        All free variables of the model. Default: all.
    budget : PrivacyBudget
        The budget of the run. Under add-remove a noisy number of units is released first.
    synthetic : Model, optional
        The same model on a synthetic table, public or simulated, for dry runs only. A model with an array of the data's
        model, or a part of one, is refused; a copy, a subsample, or a table simulated from a fit cannot be recognised
        (docs: "The guarantee").
    newton_steps, shares, clip_gradient, clip_curvature, noise_aware
        As in `Prelude`. Draws are tested if ``shares.tests`` is above zero. Default: no test.
    trajectories : int, optional
        Free trajectories between two draws. Default: enough for nearly independent proposals, within a limit of time.
    budget_share, unit, unit_index, clip_diagnostics, keep_releases, insecure_seed, model
        See `pymc_dp.steps.base.DPStep`.

    Notes
    -----
    *Before the charge* a dry run searches a centre on synthetic rows, with noise in the plan's proportion. After the
    charge nothing is raised because of noise: failing steps are left out, and without a surrogate chains do not move
    and ``surrogate_found`` in the ``privacy`` group is 0.

    *Draws* without a test are those of PyMC's NUTS, from the priors times the released likelihood: the result has
    its statistics, and ``tune`` iterations adapt its step size.

    *Privacy.* Score, curvature and the remainders of tests are sums of clipped contributions with Gaussian noise;
    preconditioner, bounds, centre and proposals are functions of earlier releases and of synthetic tables.

    *Exactness.* With tests, and without clipped remainders, the draws' stationary distribution is exactly the posterior
    tilted by the errors of the released score and curvature (docs: "Control variates"). The distribution of the score's
    noise is known: the likelihood integrates over it.

    References
    ----------
    Yıldırım and Ermiş (2019), Exact MCMC with differentially private moves, Statistics and Computing 29.
    Baker, Fearnhead, Fox and Nemeth (2019), Control variates for stochastic gradient MCMC, Statistics and
    Computing 29, for expansions around a centre without privacy.
    Christen and Fox (2005), Markov chain Monte Carlo using an approximation, JCGS 14, for surrogate proposals.
    """

    name = "dp_surrogate_hmc"

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        synthetic: Model | None = None,
        newton_steps: int | None = None,
        shares: Shares | None = None,
        clip_gradient: float | None = None,
        clip_curvature: float | None = None,
        trajectories: int | None = None,
        noise_aware: bool | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(vars, **shared)
        if not self.moves_all:
            raise InvalidArgument("DPSurrogateHMC updates all free variables together: leave out vars.")
        model = model_in_context(shared.get("model"))
        refuse_tables_of_the_data(synthetic, model)
        self.synthetic = None if synthetic is None else in_coordinates(synthetic)
        prelude = Prelude(newton_steps, shares, clip_gradient, clip_curvature, noise_aware)
        self.tested = self.asks_in_chains = shares is not None and shares.tests > 0.0
        self.acceptance_test = "penalty" if self.tested else "surrogate_check"
        self.in_chains = "log_ratios" if self.tested else "nothing"
        self.learn(prelude, {}, model)
        self.trajectories = None if trajectories is None else _validate.whole("trajectories", trajectories, at_least=1)
        if not self.tested:
            self.default_tune_steps = _TUNING_OF_NUTS

    @staticmethod
    def form(model: Model) -> Model:
        """Return the centred form, with the coordinates of the likelihood for variables with bounds."""
        return in_coordinates(model)

    def keep_starts(self, given: bool) -> None:
        """Ignore given starts: chains begin with draws of the surrogate, independent of them."""

    def suitable_draws(self) -> int:
        """Return the number of tested draws, or twice as many free ones."""
        return super().suitable_draws() * (1 if self.tested else 2)

    def sampler_requests(self, tune: int, draws: int) -> list[ReleaseRequest]:
        """Return the releases of one chain: with tests, a remainder of the log-ratio for every kept draw."""
        return [ReleaseRequest("residual", draws, 1.0, 1)] if self.tested else []

    def settle(self, known: Approximation) -> None:
        """Check the input of NUTS: likelihood and mass matrix are numerically positive definite."""
        super().settle(known)
        likelihood = self.likelihood
        if not self.tested and likelihood is not None:
            for matrix in (precision_of(likelihood), known.kernel.spread @ known.kernel.spread.T):
                if not np.isfinite(np.linalg.cholesky(matrix)).all():
                    raise NotComputable("What was released is no finite density.")

    def transition(self, theta: FloatArray) -> Transition:
        """Propose a draw of the surrogate; accept or reject by the penalty test on the remainder."""
        log_uniform, known = -self.rng.exponential(), self.known
        assert known is not None  # noqa: S101
        new = known.kernel.run(known.theta(theta), self.trajectories or known.kernel.trajectories_apart, self.rng)
        theta_new = known.point(new)
        stats = untested(accepted=True) if self.tuning else self.test(theta, theta_new, 0.0, log_uniform)
        return Transition(theta_new if stats["accepted"] else theta, stats)

    @property
    def drawn_from(self) -> tuple[Approximation, xr.Dataset] | None:
        """Approximation and likelihood, unless draws are tested or noise precludes a likelihood."""
        likelihood = self.likelihood
        return None if self.tested or self.known is None or likelihood is None else (self.known, likelihood)
