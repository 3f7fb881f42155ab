"""PyMC models for the rest of the package: the class, the model of a ``with`` block, Bambi's, and one of a column.

Other folders only pass models on, to PyMC or to this folder, and read no attribute of them: a test checks this.
"""

import gc
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from pymc import Model

from pymc_dp.exceptions import InvalidArgument, UnsupportedModel

__all__ = ["Model", "context_without_error", "model_in_context", "model_of_a_column", "refuse_bambi_statistics"]

#: Patterns in formulas: names, and terms that are categorical even if numeric (groups, and arguments of `C`, `S`, `T`).
_NAME, _MADE_LEVELS = r"\w+", r"(?:\||\b[CST]\()([^()|]*)"
#: Bambi's name of the dim of the rows.
_ROWS = "__obs__"
_CALL = re.compile(r"([A-Za-z_]\w*)\s*\(")


def model_in_context(model: Any) -> Model:
    """Return the model that was passed, or else the model of the ``with`` context."""
    if model is None:
        model = context_without_error()
        if model is None:
            raise InvalidArgument(
                "There is no model here: write this inside of `with model:`, or pass model=, here or to the step."
            )
    if not isinstance(model, Model):
        raise InvalidArgument(f"model= must be a pm.Model, but is a {type(model).__name__}.")
    return model


def context_without_error() -> Model | None:
    """Return the model of the ``with`` context, if there is one."""
    return pm.Model.get_context(error_if_none=False)


def model_of_a_column(values: np.ndarray) -> pm.Model:
    """Return a model with one observed variable, for releases of columns: its likelihood is never evaluated."""
    with pm.Model(model=None) as model:
        pm.Normal("value", pm.Normal("level"), 1.0, observed=values)
    return model


def refuse_bambi_statistics(model: pm.Model) -> None:
    """Refuse a model that Bambi built with statistics of the data. Models of Bambi are recognised by a dim `_ROWS`.

    By default Bambi computes priors from moments of the data, and centres covariates. After sampling it undoes the
    centring with the exact means of the columns, in the result that it returns.
    """
    if not any(_ROWS in (model.named_vars_to_dims.get(rv.name) or ()) for rv in model.observed_RVs):
        return
    # A model has no reference to the object of Bambi that built it, so memory is searched for that object.
    backend = next(
        (found for found in gc.get_objects() if type(found).__name__ == "PyMCModel" and found.model is model), None
    )
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


def _statistics(spec: Any) -> Iterator[str]:
    """Yield the statistics that a `bambi.Model` computes from the data, with the arguments that avoid them."""
    if spec.center_predictors:
        yield "covariates are centred at their sample means (pass center_predictors=False)"
    priors = [(name, component.prior) for name, component in spec.marginal_parameters.items()]
    for parameter, component in spec.conditional_parameters.items():
        of_another = "" if getattr(component, "is_parent", True) else f"{parameter}: "
        priors += [(f"{of_another}{name}", getattr(term, "prior", None)) for name, term in component.terms.items()]
    # Bambi sets `auto_scale` of its default priors.
    defaults = sorted(name for name, prior in priors if getattr(prior, "auto_scale", False) and spec.auto_scale)
    if defaults:
        yield (
            f"default priors hold means and standard deviations of the data ({', '.join(defaults)}: pass "
            "priors={name: bmb.Prior(...)} with numbers of your own for each, or auto_scale=False for Bambi's priors "
            "of scale 1, where outcome and covariates are on such a scale by public numbers)"
        )
    formula = spec.formula
    calls = {call for part in (formula.main, *formula.additionals) for call in _CALL.findall(part)}
    # Bambi's parser of formulas marks stateful transforms, which store statistics of the data.
    transforms = getattr(sys.modules.get("formulae.transforms"), "TRANSFORMS", {})
    stateful = {name for name, each in transforms.items() if getattr(each, "__stateful_transform__", False)}
    scaling = sorted(calls & stateful)
    if scaling:
        yield (
            f"the formula calls {', '.join(scaling)}, which learn from the whole column (transform it before with "
            "public numbers)"
        )
    # The parser takes the levels that occur in a column, sorted; it keeps declared levels of ordered categories only.
    data, parts = getattr(spec, "data", {}), (formula.main, *formula.additionals)
    named, grouped = ({word for part in parts for word in re.findall(form, part)} for form in (_NAME, _MADE_LEVELS))
    grouped = {word for found in grouped for word in re.findall(_NAME, found)}
    found = sorted(
        name
        for name in named & {*data}
        if not getattr(data[name].dtype, "ordered", False)
        and (name in grouped or not pd.api.types.is_numeric_dtype(data[name].dtype))
    )
    if found:
        yield (
            f"the levels of {', '.join(found)} are those that occur in the data (pass pd.Categorical(..., "
            "categories=public_list, ordered=True): without ordered=True a level that nobody has is left out)"
        )
