"""The deployment record of a release, as registries of differentially private releases require it.

The fields are those of the Differential Privacy Deployments Registry of OpenDP and NIST. Fields that follow from the
run are filled in; the publisher provides the others, which are listed until then. The record is computed from published
results and budgets, so it costs no privacy.
"""

import copy
import json
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xarray import DataTree

from pymc_dp.accounting import gaussian_delta
from pymc_dp.budget.plan import noise_in_words, replaced_in_words
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.reports.published import all_gaussian, facts_of, releases_by_kind
from pymc_dp.run.private_likelihood import PrivateLikelihood

Record = dict[str, dict[str, Any]]

#: The fields that the publisher has to provide, by group, with a hint for each.
_OF_THE_PUBLISHER = {
    "product": {
        "name": "what is published is called",
        "data_curators": "who holds the table and publishes",
        "intended_use": "what the release is for, and what not",
        "data_product_type": "such as: posterior draws, coefficients of a regression",
        "data_product_region": "where the people are",
        "description": "what was estimated, from which table",
        "publication_date": "year-month-day",
        "data_product_sector": "such as: health, education",
    },
    "dp_flavor": {
        "data_domain": "columns of the table with their types and ranges, and who is in it",
    },
    "model": {
        "actors": "who sees the rows, who the releases, who has to be trusted with what",
        "data_source_type_description": "how and when the rows were collected, and whether they change",
    },
    "implementation": {
        "pre_processing_eda_hyperparameter_tuning": "what was computed from the table before or beside this run",
        "justification": "why this epsilon, delta and unit; who decided; what was weighed",
    },
    "resources": {
        "sources": "where code, model and documents are",
        "registry_authors": "who wrote this record",
    },
}
#: The fields that are lists in the registry; all others are texts, of one or several lines.
_LISTS = ("data_curators", "registry_authors")
_NEIGHBOURS = {
    "substitute": "Two tables of the same number of units are neighbours if they differ in one unit: {unit}.",
    "add-remove": "Two tables are neighbours if one of them has one unit more than the other: {unit}.",
}
_METRICS = {
    "substitute": "Number of units that are replaced, between tables of the same number of units",
    "add-remove": "Number of units that are added or removed (symmetric distance)",
}
_PUBLIC = (
    "Shapes, types, which entries are missing, names and lengths of dims, ranges of integer columns that index groups, "
    "labels of published variables; the model with its priors and settings"
)
_SIDE_CHANNELS = (
    "Side channels: how long a run takes is not part of the result, and may depend on rows; memory, swap and temporary "
    "files of the machine are not protected. Errors, warnings and logs hold no entry of the table"
)
_POST_PROCESSING = (
    "Draws, summaries, reports and figures are functions of the noisy releases, of priors and of public random numbers"
)


@dataclass(frozen=True)
class Disclosure:
    """A deployment record.

    Attributes
    ----------
    record : dict
        Fields by group, with the registry's names. None: the publisher has to provide it.
    """

    record: Record

    @property
    def missing(self) -> dict[str, str]:
        """The fields that the publisher still has to provide, as ``group.field``, with a hint for each."""
        return {
            f"{group}.{name}": hint
            for group, fields in _OF_THE_PUBLISHER.items()
            for name, hint in fields.items()
            if self.record[group].get(name) is None
        }

    def to_json(self) -> str:
        """Return the record as JSON, in the registry's structure: fields below ``deployment``."""
        texts = {
            group: {
                name: "\n".join(f"- {each}" for each in value)
                if isinstance(value, list | tuple) and name not in _LISTS
                else value
                for name, value in fields.items()
            }
            for group, fields in self.record.items()
        }
        return json.dumps({"deployment": texts}, indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        """Return the record as a page."""
        lines = ["DISCLOSURE OF A DIFFERENTIALLY PRIVATE RELEASE"]
        for group, fields in self.record.items():
            lines += ["", group.replace("_", " ").capitalize()]
            for name, value in fields.items():
                hint = _OF_THE_PUBLISHER.get(group, {}).get(name)
                shown = f"TO BE SAID: {hint}" if value is None else "; ".join(_in_words(value))
                lines.append(
                    textwrap.fill(
                        f"{name.replace('_', ' ')}: {shown}", 100, initial_indent="  ", subsequent_indent="    "
                    )
                )
        return "\n".join(lines)


def disclosure(
    released: DataTree | PrivateLikelihood,
    *,
    budget: PrivacyBudget | None = None,
    said: Mapping[str, Mapping[str, Any]] | None = None,
) -> Disclosure:
    """Return the deployment record of a release, for a registry, a reviewer or an appendix.

    Parameters
    ----------
    released : DataTree or PrivateLikelihood
        The result of a private run, also as read back from disk.
    budget : PrivacyBudget, optional
        The budget of the table: the record then names all of its runs, and the spending of other tools.
    said : mapping of str to mapping of str to object, optional
        The publisher's fields, by group and field: ``{"product": {"name": "..."}}``. They are added to the content of a
        field that is filled in from the run.

    Returns
    -------
    Disclosure
        Print it, or store `Disclosure.to_json`; `Disclosure.missing` lists the fields that are still empty.

    Raises
    ------
    InvalidArgument
        If `released` is not the result of a private run, or not private, or a field does not exist.
    """
    facts = facts_of(released.tree if isinstance(released, PrivateLikelihood) else released)
    if not facts["private"]:
        raise InvalidArgument(f"This result is not private and has no guarantee: {facts['not_private_because']}.")
    if budget is not None and not isinstance(budget, PrivacyBudget):
        raise InvalidArgument(f"budget= must be the budget of the table, but is a {type(budget).__name__}.")
    record = _known(facts, budget)
    for group, fields in said.items() if isinstance(said, Mapping) else [(said, None)] if said is not None else []:
        if not isinstance(fields, Mapping) or group not in record:
            raise InvalidArgument(
                f"said= must be fields by group, such as {{'product': {{'name': 'A table'}}}}; groups are "
                f"{', '.join(record)}."
            )
        try:
            json.dumps(fields)
        except (TypeError, ValueError):
            raise InvalidArgument(f"said: {group!r} must hold texts, numbers and lists of them.") from None
        for name, value in fields.items():
            if name not in record[group]:
                raise InvalidArgument(f"said: {group!r} has no field {name!r}; it has {', '.join(record[group])}.")
            known = record[group][name]
            if isinstance(known, Mapping | int):
                raise InvalidArgument(f"said: {name!r} is a guarantee of the run, which cannot be changed.")
            record[group][name] = [*_in_words(known), *_in_words(value)] if known else copy.deepcopy(value)
    return Disclosure(record)


def _known(facts: Mapping[str, Any], budget: PrivacyBudget | None) -> Record:
    """Return the record with the fields that follow from a run's metadata and a budget; None for the others."""
    relation, rho, delta = facts["relation"], float(facts["rho"]), facts["delta"]
    gaussian, bounds = all_gaussian(facts), json.loads(facts["clip_bounds"])
    omitted = json.loads(facts["omitted_because_computed_from_rows"])
    others = [f"{gaussian_delta(rho, epsilon):.2g} at epsilon {epsilon:g}" for epsilon in (0.5, 1.0, 2.0, 4.0)]
    in_all = []
    if budget is not None:
        in_all = [
            f"All releases of the table ({budget.data_name or 'not named'}) together: epsilon "
            f"{budget.epsilon_spent:.4g} at delta {budget.delta:.3g}, of at most {budget.epsilon:g}",
            *(
                f"{tool} (not checked here): epsilon {spent[0]:g}, delta {spent[1]:g}"
                for tool, spent in budget.elsewhere.items()
            ),
            *(
                f"{plan.sampler}: epsilon {plan.epsilon:.4g} at delta {plan.delta:.3g}, {plan.unit or 'unit not named'}"
                for plan in budget.history
            ),
        ]
    return {
        "product": dict.fromkeys(_OF_THE_PUBLISHER["product"]),
        "dp_flavor": {
            "name": "Approximate DP",
            "input_metric": _METRICS[relation],
            "bound_on_input_distance": 1,
            "output_measure": "Hockey-stick divergence"
            + (", as a whole curve that of one Gaussian release" if gaussian else ""),
            "bound_on_output_distance": f"{delta:.3g} at exp({facts['epsilon']:.4g})",
            "data_domain": None,
            "unprotected_quantities": [
                *([f"The number of units: {facts['n_units']}"] if "n_units" in facts else []),
                _PUBLIC,
            ],
        },
        "privacy_loss": {
            "privacy_unit": facts["unit"],
            "privacy_unit_description": _NEIGHBOURS[relation].format(unit=facts["unit"]),
            "privacy_parameters": {
                "epsilon": facts["epsilon"],
                "delta": delta,
                **({"rho": rho, "mu": math.sqrt(2.0 * rho)} if gaussian else {}),
            },
            "privacy_parameters_description": [
                f"Of this release alone; with it {facts['budget_epsilon_spent']:.4g} of the budget of epsilon "
                f"{facts['budget_epsilon']:.4g} were spent, which is for everything that is computed from the table",
                *([f"The same noise has delta {', '.join(others)}"] if gaussian else []),
                *replaced_in_words(relation, rho, delta, gaussian=gaussian),
                *in_all,
            ],
        },
        "model": {
            "model_name": "Central",
            "model_name_description": "A trusted curator holds the rows, and answers queries with noise",
            "actors": None,
            "release_type": "One release" if budget is None or len(budget.history) < 2 else "Many releases",
            "data_source_type": "Static",
            "data_source_type_description": None,
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": [_POST_PROCESSING],
            "composition": [
                f"{facts['chains']} chains of {facts['tune']} tuning and {facts['draws']} kept iterations and all "
                f"releases before them, by {facts['accountant']}; runs of one budget add up",
            ],
        },
        "implementation": {
            "pre_processing_eda_hyperparameter_tuning": None,
            "mechanisms": [
                f"Sampler: {facts['sampler']}, of pymc_dp {facts['pymc_dp_version']} on PyMC {facts['pymc_version']}",
                *(
                    f"{kind}: {sum(each['count'] for each in group)} sums over units, noise multiplier "
                    + noise_in_words([each["noise_multiplier"] for each in group if "noise_multiplier" in each])
                    + (f", clip bound {bounds[kind]:.4g}" if kind in bounds else "")
                    for kind, group in releases_by_kind(facts).items()
                ),
                f"Noise: {facts['noise']}",
                *([f"Left out because computed from rows: {', '.join(omitted)}"] if omitted else []),
                _SIDE_CHANNELS,
            ],
            "justification": None,
        },
        "resources": dict.fromkeys(_OF_THE_PUBLISHER["resources"]),
    }


def _in_words(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [
            f"{name} {number:.4g}" if isinstance(number, float) else f"{name} {number}"
            for name, number in value.items()
        ]
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]
