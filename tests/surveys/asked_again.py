"""What is compiled of a model, once for all times that one test asks of it."""

import contextlib
import functools
from collections.abc import Mapping

import numpy as np
import pytest

from pymc_dp.surveys import averaging, checking, comparing, describing

#: What follows a model alone, and no noise; where it is made, and by what.
_OF_MODELS = {
    averaging: ["view_of", "UnitLikelihood"],
    checking: ["view_of", "UnitLikelihood"],
    comparing: ["view_of", "UnitLikelihood"],
    describing: ["model_of_a_column", "read", "UnitLikelihood"],
}


def _facts(given):
    """Return what tells arguments apart: columns by what they hold, all else by identity."""
    if isinstance(given, np.ndarray) and not given.dtype.hasobject:
        return given.dtype.str, given.shape, given.tobytes()
    if isinstance(given, Mapping):
        return tuple((name, _facts(each)) for name, each in given.items())
    return id(given)


def _once(make):
    known = {}

    @functools.wraps(make)
    def made(*arguments, **options):
        key = (*map(_facts, arguments), _facts(options))
        if key not in known:  # arguments are kept, so that nothing else gets their identity
            known[key] = arguments, options, make(*arguments, **options)
        return known[key][-1]

    return made


@contextlib.contextmanager
def compiled_once():
    """Decorate a test of many releases: charges, curators and noise are made anew each time."""
    with pytest.MonkeyPatch.context() as patches:
        for module, names in _OF_MODELS.items():
            for name in names:
                patches.setattr(module, name, _once(getattr(module, name)))
        yield
