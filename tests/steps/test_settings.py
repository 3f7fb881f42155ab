import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.steps.tuning import kinetic_energy

HMC = {"clip_gradient": 1.0, "clip_log_ratio": 1.0, "step_size": 0.1}
BATCHES = {"clip_gradient": 1.0, "step_size": 0.1, "sampling_probability": 0.1}


@pytest.fixture
def model():
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma")
        beta = pm.Normal("beta", shape=(2, 2))
        weights = pm.Dirichlet("weights", np.ones(3))
        pm.Normal("y", beta.sum() + weights[0], sigma, observed=np.arange(50.0))
    return model


NUMBERS = {"weights": [5.0, 6.0], "beta": [[1.0, 2.0], [3.0, 4.0]], "sigma": 9.0}
IN_ORDER = np.array([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def test_a_mass_matrix_by_name_is_the_one_in_order(model):
    budget = dp.PrivacyBudget(1.0, 1e-6, "add-remove")
    expected = kinetic_energy(IN_ORDER, 7).velocity(np.ones(7))
    with model:
        for make in (dp.DPHMC, dp.DPMALA):
            step = make(budget=budget, **HMC, mass_matrix=NUMBERS)
            assert step._kinetic_energy.velocity(np.ones(7)) == pytest.approx(expected)
        assert np.all(dp.DPSGLD(budget=budget, **BATCHES, mass_matrix=NUMBERS).mass.masses == IN_ORDER)
        some = dp.DPHMC(["beta", "sigma"], budget=budget, **HMC, mass_matrix={"sigma": 2.0, "beta": 4.0})
    assert some._kinetic_energy.velocity(np.ones(5)) == pytest.approx(1.0 / np.array([2.0, 4.0, 4.0, 4.0, 4.0]))


def test_a_proposal_scale_by_name_is_the_one_in_order(model):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with model:
        step = dp.DPPenalty(budget=budget, clip_log_ratio=1.0, proposal_scale=NUMBERS)
        barker = dp.DPBarker(budget=budget, batch_size=20, proposal_scale=NUMBERS)
    for one in (step, barker):
        assert np.all(one.proposal.axes == np.diag(IN_ORDER))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({**NUMBERS, "gamma": 1.0}, "names 'gamma'; it must name .* 'sigma', 'beta', 'weights'"),
        ({**NUMBERS, "sigma_log__": 1.0}, "names 'sigma_log__'"),
        ({**NUMBERS, 3: 1.0}, "names '3'"),
        ({"beta": 1.0, "sigma": 1.0}, "leaves out 'weights'"),
        ({**NUMBERS, "weights": np.ones(3)}, r"\['weights'\] must be a number or an array of the shape of 'weights'"),
        ({**NUMBERS, "beta": "wide"}, r"\['beta'\] must be a number"),
        ({**NUMBERS, "sigma": -1.0}, "positive definite|above zero"),
    ],
)
def test_numbers_by_name_that_do_not_fit_are_refused(model, numbers, message):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with model:
        with pytest.raises(dp.InvalidArgument, match=f"mass_matrix.*({message})"):
            dp.DPHMC(budget=budget, **HMC, mass_matrix=numbers)
        with pytest.raises(dp.InvalidArgument, match=f"proposal_scale.*({message})"):
            dp.DPPenalty(budget=budget, clip_log_ratio=1.0, proposal_scale=numbers)
    with model, pytest.raises(dp.InvalidArgument, match="names 'sigma'"):
        dp.DPHMC(["beta"], budget=budget, **HMC, mass_matrix={"beta": 1.0, "sigma": 1.0})


@pytest.mark.parametrize("name", ["DPHMC", "DPMALA", "DPSGLD", "DPSGHMC", "DPSGNHT", "DPPenalty"])
def test_required_settings_are_asked_for_before_others_are_judged(model, name):
    wrong = {"proposal_scale": np.ones(99)} if name == "DPPenalty" else {"mass_matrix": np.ones(99)}
    with model, pytest.raises(dp.InvalidArgument, match=r"clip_[a-z_]* is required"):
        getattr(dp, name)(budget=dp.PrivacyBudget(1.0, 1e-6), prelude=None, **wrong)


@pytest.mark.parametrize("matrix", ["diagonal", [[1.0], [2.0, 3.0]], object()])
def test_a_mass_matrix_that_is_no_array_is_refused(model, matrix):
    with model, pytest.raises(dp.InvalidArgument, match="mass_matrix must be"):
        dp.DPHMC(budget=dp.PrivacyBudget(1.0, 1e-6), **HMC, mass_matrix=matrix)


@pytest.mark.parametrize("setting", [{"batch_size": 10}, {"batch_size": 10, "n_units": 50}])
def test_the_penalty_test_on_all_units_names_the_one_on_batches(model, setting):
    budget = dp.PrivacyBudget(1.0, 1e-6)
    with model:
        with pytest.raises(dp.InvalidArgument, match=f"has no {', '.join(setting)}. Use DPMinibatchPenalty"):
            dp.DPPenalty(budget=budget, clip_log_ratio=1.0, proposal_scale=1.0, **setting)
        step = dp.DPMinibatchPenalty(
            budget=budget, clip_log_ratio=1.0, proposal_scale=1.0, **({"batch_size": 10} | setting)
        )
    assert step.batch_size == 10
