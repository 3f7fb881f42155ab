"""Arguments that samplers share: typed for `**shared`, and shown where a sampler is used.

A sampler's constructor names its own arguments and hands the others on, ``**shared: Unpack[SharedArguments]``. Type
checkers read that; `inspect.signature` and `help` are told by `signature_of` and `docstring_of`, which `DPStep` calls
for each of its subclasses.
"""

import inspect
import re
from typing import Any, TypedDict, get_args

from numpy.typing import ArrayLike

from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.model.context import Model
from pymc_dp.steps.prelude.learning import PreludeArgument
from pymc_dp.steps.sampler import ClipDiagnostics


class SharedArguments(TypedDict, total=False):
    """Those of every step: see `pymc_dp.steps.base.DPStep`."""

    budget: PrivacyBudget | None
    budget_share: float
    unit: str | None
    unit_index: Any
    clip_diagnostics: ClipDiagnostics
    keep_releases: bool
    insecure_seed: int | None
    model: Model | None


class TemperedArguments(SharedArguments, total=False):
    """Those of tests on batches: see `pymc_dp.steps.tempered.TemperedBatches`."""

    batch_size: int | None
    tempering: float
    n_units: int | None


class StochasticGradientArguments(SharedArguments, total=False):
    """Those of samplers without a test: see `pymc_dp.steps.stochastic_gradient.StochasticGradientStep`."""

    clip_gradient: float | None
    step_size: float | tuple[float, float] | None
    sampling_probability: float | None
    batch_size: int | None
    n_units: int | None
    tempering: float
    mass_matrix: ArrayLike | None
    prelude: PreludeArgument


#: In a docstring: names of arguments, and the class that documents them.
_ELSEWHERE = re.compile(r"^    (?P<names>\w+(?:, \w+)*)\n        See `(?:\w+\.)*(?P<owner>\w+)`\.\n", re.MULTILINE)


def signature_of(step: type) -> inspect.Signature:
    """Return a sampler's arguments, and those that its constructor hands on, as far as it takes them."""
    found: dict[str, inspect.Parameter] = {}
    taken: frozenset[str] | None = None  # all
    for cls in step.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = list(inspect.signature(vars(cls)["__init__"]).parameters.values())[1:]
        handed_on = [each for each in parameters if each.kind is each.VAR_KEYWORD]
        for each in parameters:
            if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) and (taken is None or each.name in taken):
                found.setdefault(each.name, each)
        if not handed_on:
            break
        named = [frozenset(shared.__annotations__) for shared in get_args(handed_on[0].annotation)[:1]]
        taken = frozenset.intersection(*named, *([] if taken is None else [taken])) if named else taken
    return inspect.Signature(sorted(found.values(), key=lambda each: each.kind))


def docstring_of(step: type) -> str | None:
    """Return a sampler's docstring, with what classes that it refers to ("See ...") say of arguments written out."""
    if not step.__doc__:
        return step.__doc__
    owners = {cls.__name__: cls.__doc__ or "" for cls in step.__mro__}

    def written_out(found: re.Match[str]) -> str:
        entries = _entries(owners.get(found["owner"], ""))
        names = found["names"].split(", ")
        return "".join(entries[name] for name in names) if all(name in entries for name in names) else found[0]

    return _ELSEWHERE.sub(written_out, step.__doc__)


def _entries(docstring: str) -> dict[str, str]:
    """Return what a docstring says of each argument, by name."""
    return {
        name: found[0]
        for found in re.finditer(r"^    (?P<names>\w+(?:, \w+)*) :.*\n(?:        .*\n)+", docstring, re.MULTILINE)
        for name in found["names"].split(", ")
    }
