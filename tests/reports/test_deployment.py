"""The deployment record: the registry's fields, what a run knows of them, and what its publisher has to say."""

import json

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from conftest import QUIET, gaussian_data, gaussian_model, hmc

import pymc_dp as dp
from pymc_dp import diagnostics
from pymc_dp.accounting import gaussian_epsilon

#: The registry's fields of a deployment (opendp/deployments-registry-data), by group.
REGISTRY = {
    "product": {
        *("name", "data_curators", "intended_use", "data_product_type", "data_product_region", "description"),
        *("publication_date", "data_product_sector"),
    },
    "dp_flavor": {
        *("name", "input_metric", "bound_on_input_distance", "output_measure", "bound_on_output_distance"),
        *("data_domain", "unprotected_quantities"),
    },
    "privacy_loss": {
        *("privacy_unit", "privacy_unit_description", "privacy_parameters", "privacy_parameters_description"),
    },
    "model": {
        *("model_name", "model_name_description", "actors", "release_type", "release_type_description"),
        *("data_source_type", "data_source_type_description", "access_type", "access_type_description"),
    },
    "accounting": {"post_processing", "composition"},
    "implementation": {"pre_processing_eda_hyperparameter_tuning", "mechanisms", "justification"},
    "resources": {"sources", "registry_authors"},
}
SAID = {
    "product": {
        **dict.fromkeys(REGISTRY["product"], "said"),
        "name": "Fever and age",
        "data_curators": ["A statistics office"],
    },
    "dp_flavor": {"data_domain": "one number for each person", "unprotected_quantities": ["the list of wards"]},
    "model": {"actors": "the office holds the rows", "data_source_type_description": "a survey of 2024"},
    "implementation": {
        "pre_processing_eda_hyperparameter_tuning": "none",
        "justification": "decided by the board on 3 May",
    },
    "resources": {"sources": "https://example.org", "registry_authors": ["A. Person"]},
}


@pytest.fixture(scope="module")
def released():
    budget = dp.PrivacyBudget(5.0, 1e-6, data_name="fever", elsewhere={"a table of counts": (0.5, 0.0)})
    with gaussian_model(gaussian_data()):
        tree = pm.sample(draws=5, chains=2, cores=1, step=hmc(budget), **QUIET)
    return tree, budget


def test_the_record_has_the_registrys_fields_and_no_others(released):
    record = json.loads(dp.disclosure(released[0], said=SAID).to_json())["deployment"]
    assert list(record) == list(REGISTRY)
    assert record["dp_flavor"]["unprotected_quantities"].endswith("\n- the list of wards")
    assert record["resources"]["registry_authors"] == ["A. Person"]
    for group, fields in record.items():
        assert set(fields) <= REGISTRY[group]
        optional = {"release_type_description", "access_type_description"}
        assert REGISTRY[group] - set(fields) <= optional


def test_what_a_run_knows_is_filled_in(released):
    tree, budget = released
    facts = tree["privacy"].attrs
    record = dp.disclosure(tree, budget=budget).record
    assert record["privacy_loss"]["privacy_unit"] == "one entry of the dim 'person'"
    assert record["privacy_loss"]["privacy_parameters"]["epsilon"] == facts["epsilon"]
    assert record["privacy_loss"]["privacy_parameters"]["delta"] == facts["delta"]
    assert record["privacy_loss"]["privacy_parameters"]["mu"] == pytest.approx(np.sqrt(2 * facts["rho"]))
    assert "The number of units: 400" in record["dp_flavor"]["unprotected_quantities"]
    told = " ".join(record["privacy_loss"]["privacy_parameters_description"])
    assert "epsilon 5 at delta 1e-06, of at most 5" in told
    assert "a table of counts (not checked here): epsilon 0.5" in told
    mechanisms = " ".join(record["implementation"]["mechanisms"])
    for part in ("gradient: ", "log_ratio: ", "noise multiplier", "clip bound 4", "Side channels", "discrete Gaussian"):
        assert part in mechanisms


def test_what_only_the_publisher_can_say_is_asked_for_until_it_is_said(released):
    tree, _ = released
    bare, told = dp.disclosure(tree), dp.disclosure(tree, said=SAID)
    assert "product.name" in bare.missing
    assert "implementation.justification" in bare.missing
    assert str(bare).count("TO BE SAID") == len(bare.missing) == 15
    assert not told.missing
    assert "TO BE SAID" not in str(told)
    assert "decided by the board" in str(told)
    assert told.record["dp_flavor"]["unprotected_quantities"][-1] == "the list of wards"
    assert len(told.record["dp_flavor"]["unprotected_quantities"]) == 3
    assert max(map(len, str(told).splitlines())) <= 100


def test_a_released_likelihood_and_a_stored_result_are_disclosed_as_well(released, tmp_path):
    tree, _ = released
    likelihood = dp.private_likelihood(
        gaussian_model(gaussian_data()), budget=dp.PrivacyBudget(5.0, 1e-6), progressbar=False
    )
    assert (
        dp.disclosure(likelihood).record["privacy_loss"]["privacy_parameters"]["epsilon"] == likelihood.facts["epsilon"]
    )
    tree.to_netcdf(tmp_path / "tree.nc")
    with xr.open_datatree(tmp_path / "tree.nc") as stored:
        assert dp.disclosure(stored).to_json() == dp.disclosure(tree).to_json()


def test_a_stored_result_of_a_run_on_batches_is_disclosed(tmp_path):
    """Numbers that were read from disk are NumPy's; of such a run no whole curve is claimed."""
    with gaussian_model(gaussian_data()):
        budget = dp.PrivacyBudget(2.0, 1e-6)
        step = dp.DPSGLD(step_size=1e-4, batch_size=40, clip_gradient=1.0, budget=budget)
        tree = pm.sample(draws=4, chains=1, cores=1, step=step, **QUIET)
    tree.to_netcdf(tmp_path / "tree.nc")
    with xr.open_datatree(tmp_path / "tree.nc") as stored:
        record = dp.disclosure(stored).record
    assert record["dp_flavor"]["output_measure"] == "Hockey-stick divergence"
    assert "rho" not in record["privacy_loss"]["privacy_parameters"]


def test_under_add_remove_the_number_of_units_is_not_disclosed():
    budget = dp.PrivacyBudget(5.0, 1e-6, "add-remove")
    with gaussian_model(gaussian_data()):
        tree = pm.sample(draws=2, chains=1, cores=1, step=hmc(budget), **QUIET)
    text = dp.disclosure(tree, budget=budget).to_json()
    assert "400" not in text
    assert "one unit more than the other" in text


def test_what_add_remove_guarantees_where_a_unit_is_replaced():
    """By the Gaussian of twice the shift; under substitution there is nothing to say."""
    budget = dp.PrivacyBudget(2.0, 1e-6, "add-remove")
    with gaussian_model(gaussian_data()):
        plan = budget.plan(hmc(budget), draws=2, chains=1)
        tree = pm.sample(draws=2, chains=1, cores=1, step=hmc(budget), **QUIET)
    replaced = gaussian_epsilon(4.0 * plan.rho, 1e-6)
    assert 4.0 < replaced < 4.5
    sentence = f"With a unit replaced (substitute) the same noise guarantees epsilon {replaced:.4g}"
    for text in (str(plan), diagnostics.privacy_report(tree), str(dp.disclosure(tree))):
        assert sentence in " ".join(text.split())
    with gaussian_model(gaussian_data()):
        assert "replaced" not in str(dp.PrivacyBudget(2.0, 1e-6).plan(hmc(None), draws=2, chains=1))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"product": {"title": "A table"}}, "no field 'title'; it has name"),
        ({"publisher": {}}, "groups are product"),
        ({"product": "A table"}, "must be fields by group"),
        ("A table", "must be fields by group"),
        ({"privacy_loss": {"privacy_parameters": {"epsilon": 0.1}}}, "is a guarantee of the run"),
        ({"product": {"name": {1, 2}}}, "texts, numbers and lists"),
    ],
)
def test_fields_that_no_registry_has_are_refused(released, said, message):
    with pytest.raises(dp.InvalidArgument, match=message):
        dp.disclosure(released[0], said=said)


def test_what_is_not_private_is_not_disclosed(released):
    with gaussian_model(gaussian_data()):
        step = hmc(dp.PrivacyBudget(5.0, 1e-6), insecure_seed=1)
        seeded = pm.sample(draws=2, chains=1, cores=1, step=step, **QUIET)
    with pytest.raises(dp.InvalidArgument, match="not private and has no guarantee: privacy noise was seeded"):
        dp.disclosure(seeded)
    with pytest.raises(dp.InvalidArgument, match="not a dict"):
        dp.disclosure({})
    with pytest.raises(dp.InvalidArgument, match="must be the budget"):
        dp.disclosure(released[0], budget=3.0)
    assert diagnostics.privacy_report(released[0]).startswith("Guarantee")
