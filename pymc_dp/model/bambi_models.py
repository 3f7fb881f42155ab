"""Models of Bambi, whose defaults compute from the data: priors from its moments, and centred covariates.

Bambi also undoes the centring after sampling, with the exact means of the columns, in the result that it returns.
"""

import gc
import re
import sys
from collections.abc import Iterator
from typing import Any

import pymc as pm

from pymc_dp.exceptions import UnsupportedModel

#: Bambi's name of the dim of the rows.
_ROWS = "__obs__"
_CALL = re.compile(r"([A-Za-z_]\w*)\s*\(")


def refuse_bambi_statistics(model: pm.Model) -> None:
    """Refuse a model that Bambi built with statistics of the data.

    Parameters
    ----------
    model : pm.Model
        Of any origin. Bambi's are known by the dim of their rows.

    Raises
    ------
    UnsupportedModel
        If the model has default priors, centred covariates or terms that are scaled by the data, or the
        `bambi.Model` that would tell is no more.
    """
    if not any(_ROWS in (model.named_vars_to_dims.get(rv.name) or ()) for rv in model.observed_RVs):
        return
    backend = _backend_of(model)
    if backend is None:
        raise UnsupportedModel(
            f"The model's rows have the dim {_ROWS!r}, as in models of Bambi, but the bambi.Model that built it is not "
            "in memory, so it cannot be seen whether priors and covariates were computed from the data. Keep the "
            "bambi.Model in a variable and sample its backend.model, or call the dim of your rows otherwise."
        )
    statistics = list(_statistics(backend.spec))
    if statistics:
        raise UnsupportedModel(
            f"Bambi computed parts of this model from the data, and the result would publish them: "
            f"{'; '.join(statistics)}."
        )


def _backend_of(model: pm.Model) -> Any:
    """Return the object of Bambi that built a model; models do not know it, so it is looked for in memory."""
    return next(
        (found for found in gc.get_objects() if type(found).__name__ == "PyMCModel" and found.model is model), None
    )


def _statistics(spec: Any) -> Iterator[str]:
    """Say what a `bambi.Model` computes from the data, and what to pass instead."""
    if spec.center_predictors:
        yield "covariates are centred at their sample means (pass center_predictors=False)"
    defaults = sorted(_default_priors(spec)) if spec.auto_scale else []
    if defaults:
        yield (
            f"default priors hold means and standard deviations of the data ({', '.join(defaults)}: pass "
            "priors={name: bmb.Prior(...)} with numbers of your own for each)"
        )
    formula = spec.formula
    calls = {call for part in (formula.main, *formula.additionals) for call in _CALL.findall(part)}
    scaling = sorted(calls & _stateful_transforms())
    if scaling:
        yield (
            f"the formula calls {', '.join(scaling)}, which learn from the whole column (transform it before with "
            "public numbers)"
        )


def _default_priors(spec: Any) -> Iterator[str]:
    """Yield the names of parameters whose prior was Bambi's choice: Bambi marks priors of the user."""
    for name, component in spec.marginal_parameters.items():
        if getattr(component.prior, "auto_scale", False):
            yield name
    for component in spec.conditional_parameters.values():
        for name, term in component.terms.items():
            if getattr(getattr(term, "prior", None), "auto_scale", False):
                yield name


def _stateful_transforms() -> set[str]:
    """Return the functions of formulas that remember something of the data, as Bambi's formula parser marks them."""
    transforms = getattr(sys.modules.get("formulae.transforms"), "TRANSFORMS", {})
    return {name for name, each in transforms.items() if getattr(each, "__stateful_transform__", False)}
