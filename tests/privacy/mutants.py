"""Privacy bugs, each a small change of the package, and the tests that convict it: the mutation score.

    python tests/privacy/mutants.py                # all of them: prints the table and the score
    python tests/privacy/mutants.py refund seed    # those whose name or class holds one of the words

Each is applied by itself to a copy of the package in a temporary folder, and its tests are run there. It is convicted if
a test fails; one that survives, or whose text no longer stands in the package exactly once, is an error. The tests are
first run on the package as it is: a test that fails anyway convicts nobody. `test_mutants.py` checks the texts alone.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import arviz  # noqa: F401  what every test imports, once for all forks; not pymc_dp itself
import hypothesis  # noqa: F401
import pymc  # noqa: F401
import pytest
import scipy.stats  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 900


@dataclass(frozen=True)
class Mutant:
    """One bug.

    Attributes
    ----------
    name : str
        What is wrong.
    sort : str
        Which class of bugs it is one of.
    file : str
        Below `pymc_dp/`.
    old, new : str
        The text that is replaced, which stands there exactly once, and by what.
    tests : tuple of str
        Which tests convict it: ids below `tests/`.
    """

    name: str
    sort: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_CURATOR = "release/test_curator.py::"
_INFINITE = "steps/test_infinite_epsilon.py::"
_HOSTILE = "release/test_hostile_samplers.py::"
_CONTRACT = "steps/test_contract.py::"
_LEAKS = "privacy/test_nothing_leaks.py::"
_CLIP = "rows/test_clip.py::"
_EXPANSION = "rows/test_expansion.py::"
_ACCEPTED = "privacy/test_accepted_models.py::"
_ROWS = "rows/test_likelihood.py::"
_SIZES = "release/test_sizes.py::"
_CENTRED = "release/test_centred.py::"
_RESPONSES = "rows/test_responses.py::"
_GRADIENTS = "release/test_gradients.py::"
_PARTITIONED = "rows/test_partitioned.py::"
_TABLES = "tables/test_table.py::"
_ON_DASK = "tables/test_on_dask.py::"
_WORKERS = "tables/test_workers.py::"
_BATCHES = "privacy/test_batch_releases.py::"
_SAVED = "test_saved_budget.py::"
_BUDGET = "test_budget.py::"
_FAULTS = "privacy/test_faults.py::"
_BOUNDED = f"{_EXPANSION}test_replacing_one_unit_moves_every_sum_by_no_more_than_declared"

MUTANTS = (
    # Noise -----------------------------------------------------------------------------------------------------
    Mutant("halved where it is added", "noise", "release/curator.py",
           "noisy = self._noise.add(noisy, noise_std / grid)", "noisy = self._noise.add(noisy, 0.5 * noise_std / grid)",
           (f"{_CURATOR}test_noise_is_the_multiplier_times_the_sensitivity",)),
    Mutant("halved at its source", "noise", "release/noise.py",
           "space = opendp.vector_domain", "scale = scale / 2\n    space = opendp.vector_domain",
           ("release/test_noise.py::test_noise_is_gaussian_with_the_asked_scale",)),
    Mutant("forgotten", "noise", "release/curator.py",
           "        if not silent:\n            noisy =", "        if False:\n            noisy =",
           (f"{_CURATOR}test_noise_is_the_multiplier_times_the_sensitivity",)),
    Mutant("forgotten on batches", "noise", "release/curator.py",
           "        if not silent:\n            noisy =", "        if not silent and not weight:\n            noisy =",
           (f"{_BATCHES}test_an_empty_batch_is_released_like_any_other",)),
    Mutant("none, whatever the budget", "noise", "release/meter.py",
           "if adds_noise and not noise_multiplier > NO_NOISE and not self.without_noise:", "if False:",
           (f"{_INFINITE}test_the_curator_of_a_finite_budget_refuses_a_release_without_noise",)),
    Mutant("none where a plan has some", "noise", "release/curator.py",
           "silent = self._meter.without_noise and noise_multiplier <= NO_NOISE", "silent = self._meter.without_noise",
           (f"{_INFINITE}test_noise_that_is_added_is_added_without_a_limit_too",)),
    Mutant("of a seeded generator", "noise", "release/noise.py",
           "return np.array(_gaussian(scale, integers.size)(integers.tolist()), dtype=np.int64)",
           "return integers + np.rint(np.random.default_rng(0).normal(scale=scale, size=integers.size)).astype(np.int64)",
           (f"{_LEAKS}test_seeds_of_the_sampler_do_not_reach_the_noise",)),
    Mutant("shared by forked workers", "noise", "release/noise.py",
           "return np.array(_gaussian(scale, integers.size)(integers.tolist()), dtype=np.int64)",
           "return integers + np.rint(np.random.normal(scale=scale, size=integers.size)).astype(np.int64)",
           ("release/test_noise.py::test_forked_processes_never_share_noise",)),
    Mutant("words for batches from numpy's global seed", "noise", "release/noise.py",
           "return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)",
           "return np.random.randint(0, 2**64, size=count, dtype=np.uint64)",
           ("release/test_noise.py::test_words_are_the_operating_systems",)),
    Mutant("seeded chains share one stream", "noise", "release/noise.py",
           "return InsecureNoise(self._seed, key)", "return self",
           ("release/test_noise.py::test_chains_of_insecure_noise_differ_and_reproduce",)),
    Mutant("clip counts without", "noise", "release/curator.py",
           "        noisy = self._noise.add(", '        noisy = exact.integers if query.kind == "clip_count" else self._noise.add(',
           (f"{_CURATOR}test_a_window_without_evaluations_still_has_noise",)),
    Mutant("clip counts' for one evaluation only", "noise", "release/queries.py",
           "math.floor(count / (number * grid))", "math.floor(count / grid)",
           (f"{_CURATOR}test_clip_counts_are_means_with_noise_for_their_windows",)),
    Mutant("clip counts' for one entry only", "noise", "release/queries.py",
           "        return math.sqrt(self.entries(terms)) * _ROUNDING\n\n    def factor", "        return 1.0\n\n    def factor",
           (f"{_CURATOR}test_clip_counts_are_means_with_noise_for_their_windows",)),
    Mutant("clip counts' without the rounding of means", "noise", "release/queries.py",
           '        """Return the norm of one step in every entry: means are rounded down."""\n        return math.sqrt(self.entries(terms)) * _ROUNDING',
           '        """Return the norm of one step in every entry: means are rounded down."""\n        return 0.0',
           (f"{_CURATOR}test_a_unit_that_moves_every_count_is_paid_for_to_the_last_bit",)),
    Mutant("none checked for a bound of zero", "noise", "release/query.py",
           "    if not SMALLEST_CLIP_BOUND <= bound <= LARGEST_CLIP_BOUND:",
           "    if not -1.0 <= bound <= LARGEST_CLIP_BOUND:",
           ("privacy/test_synthetic_tables.py::test_bounds_that_floating_point_cannot_keep_are_refused",)),
    Mutant("a Barker decision drawn without", "noise", "release/curator.py",
           "accepted = happens(self._noise, probability) == unlikely", "accepted = not unlikely",
           ("steps/test_tempered_batches.py::test_equal_rows_meet_both_decisions",)),
    # Sensitivity ------------------------------------------------------------------------------------------------
    Mutant("of adding a row, for replacing one", "sensitivity", "release/query.py",
           'SENSITIVITY_FACTOR = {"substitute": 2.0,', 'SENSITIVITY_FACTOR = {"substitute": 1.0,',
           (f"{_CURATOR}test_noise_is_the_multiplier_times_the_sensitivity",)),
    Mutant("for the wrong relation", "sensitivity", "release/curator.py",
           "self._terms = Terms(relation, n_public,", 'self._terms = Terms("add-remove", n_public,',
           (f"{_CURATOR}test_noise_is_the_multiplier_times_the_sensitivity",)),
    Mutant("of a formula that hits zero: a batch of one", "sensitivity", "release/penalised.py",
           "exact = 2.0 * reach + 2.0 * (1.0 - 1.0 / batch_size) * reach**2",
           "exact = (1.0 - 1.0 / batch_size) * (2.0 * reach + 2.0 * reach**2)",
           ("release/test_penalised.py::test_replacing_one_unit_moves_it_by_at_most_the_sensitivity_and_sometimes_by_that",)),
    Mutant("of a mean's variance with half its constant", "sensitivity", "release/penalised.py",
           "2.0 * (1.0 - 1.0 / batch_size) * reach**2", "(1.0 - 1.0 / batch_size) * reach**2",
           ("release/test_penalised.py::test_replacing_one_unit_moves_it_by_at_most_the_sensitivity_and_sometimes_by_that",)),
    Mutant("without the counts that ride along", "sensitivity", "release/curator.py",
           "            sensitivity *= query.sampled.count_factor\n", "            pass\n",
           (f"{_BATCHES}test_the_worst_neighbour_moves_it_by_just_that",)),
    Mutant("without rounding", "sensitivity", "rows/clip.py",
           "return bound * (1.0 - _SHRINK - size * 2.0**-51)", "return bound * (1.0 + 2.0**-40)",
           (f"{_CLIP}test_factored_contributions_stay_within_the_bound",
            f"{_CLIP}test_removing_any_unit_moves_the_sum_by_at_most_the_bound")),
    Mutant("of a Barker decision at twice the clip bound", "sensitivity", "release/queries.py",
           "return barker_correction.clip_bound(self.batches.batch_size,",
           "return 2.0 * barker_correction.clip_bound(self.batches.batch_size,",
           ("steps/test_tempered_batches.py::test_no_replaced_unit_moves_a_decisions_noise_by_more_than_the_bound_it_is_accounted_for",)),
    # Clipping -----------------------------------------------------------------------------------------------------
    Mutant("declared, raw log-ratios summed", "clipping", "rows/clip.py",
           "    if abs(difference) <= bound:", "    if abs(difference) <= np.inf:",
           (f"{_CLIP}test_log_ratios_are_odd_and_bounded",)),
    Mutant("declared, raw gradients summed", "clipping", "rows/clip.py",
           "        divisor = bound if norm <= bound else norm",
           "        divisor = bound if norm < np.inf else norm",
           (f"{_CLIP}test_removing_any_unit_moves_the_sum_by_at_most_the_bound",)),
    Mutant("declared, log-likelihoods summed for slopes in the fused loops", "clipping", "rows/fused/loops.py",
           'f"    slopes = S.reshape((-1, BLOCK))[1:{self._n_outputs}]"', 'f"    slopes = S.reshape((-1, BLOCK))[0:{self._n_outputs}]"',
           (f"{_ROWS}test_clipped_sums_match_a_loop_over_rows",)),
    Mutant("of outer products by the norms of other rows", "clipping", "rows/clip.py",
           "(vector_squares[start + i] + _TINY) * (square + _TINY)", "(vector_squares[i] + _TINY) * (square + _TINY)",
           (f"{_ROWS}test_whatever_one_row_holds_the_sum_moves_within_its_sensitivity",
            f"{_ROWS}test_bits_do_not_depend_on_order_or_chunks")),
    Mutant("forgotten for a caller's own contributions", "clipping", "rows/likelihood.py",
           "np.ascontiguousarray(found.T), clip.shrunk(bound, size), 1.0 / grid, sums",
           "np.ascontiguousarray(found.T), 1e300, 1.0 / grid, sums",
           ("rows/test_sum_over_units.py::test_replacing_any_contribution_moves_the_sum_by_at_most_twice_the_bound",)),
    Mutant("after the sum of a unit's rows is forgotten", "clipping", "rows/likelihood.py",
           "        if chunk.starts is None:\n            return self._engine", "        if True:\n            return self._engine",
           (f"{_ROWS}test_rows_of_one_unit_are_summed_before_clipping",)),
    Mutant("after the sum", "clipping", "rows/expansion.py",
           "            return _weighted_sum(scores_of(chunk, self._centre), self.weights[chunk.units], grid)",
           "            sums = scores_of(chunk, self._centre).sum(axis=1, keepdims=True)\n"
           "            factor = np.full(1, min(1.0, self._centre.clip_gradient / np.linalg.norm(sums)))\n"
           "            return _weighted_sum(sums, factor, grid)",
           (_BOUNDED,)),
    Mutant("by the largest entry, not the norm", "clipping", "rows/clip.py",
           "            squares[i] += a[i] * a[i]", "            squares[i] = max(squares[i], a[i] * a[i])",
           (f"{_CLIP}test_removing_any_unit_moves_the_sum_by_at_most_the_bound",)),
    Mutant("by the norm of one entry out of two", "clipping", "rows/clip.py",
           "            squares[i] = squares[i] + a[i] * a[i] + b[i] * b[i]\n", "            squares[i] = squares[i] + a[i] * a[i]\n",
           (f"{_CLIP}test_removing_any_unit_moves_the_sum_by_at_most_the_bound",)),
    Mutant("by the norm of three entries out of four", "clipping", "rows/clip.py",
           " + c[i] * c[i] + d[i] * d[i]", " + c[i] * c[i]",
           (f"{_CLIP}test_removing_any_unit_moves_the_sum_by_at_most_the_bound",)),
    Mutant("lets NaN through", "clipping", "rows/clip.py",
           "        if not norm <= bound:", "        if norm > bound:",
           (f"{_EXPANSION}test_a_bad_row_is_silent_and_changes_no_other", _BOUNDED)),
    Mutant("takes NaN for short", "clipping", "rows/clip.py",
           "        divisor = bound if norm <= bound else norm",
           "        divisor = norm if norm > bound else bound",
           (f"{_CLIP}test_a_row_that_is_not_finite_counts_as_clipped_zero",)),
    Mutant("leaves a unit that is not finite its weight", "clipping", "rows/clip.py",
           "weights[i] = min(weights[i], bound / norm) if norm < np.inf else 0.0",
           "weights[i] = min(weights[i], bound / norm) if norm < np.inf else 1.0",
           (_BOUNDED,)),
    Mutant("truncates away from zero", "clipping", "rows/clip.py",
           "            total += np.int64(value if factors[i] > 0.0 else 0.0)",
           "            total += np.int64(np.ceil(value) if factors[i] > 0.0 else 0.0)",
           (f"{_CLIP}test_truncation_is_toward_zero",)),
    Mutant("forgotten for residuals", "clipping", "rows/expansion.py",
           "        shrunk = clip.shrunk(bound, 1)\n", "        shrunk = 1e6\n", (_BOUNDED,)),
    Mutant("forgotten for curvatures", "clipping", "rows/expansion.py",
           "            if np.isfinite(centre.clip_curvature):", "            if False:", (_BOUNDED,)),
    Mutant("by the norm along other directions", "clipping", "rows/expansion.py",
           "            squares = squares_of(scores_of(chunk, centre))\n            clip.lower_weights",
           "            squares = squares_of(np.ascontiguousarray(chunk.gradient(centre.theta).T))\n            clip.lower_weights",
           (_BOUNDED, f"{_EXPANSION}test_sums_and_remainders_are_those_of_a_loop_over_rows")),
    Mutant("by the norm of another row", "clipping", "rows/expansion.py",
           "clip.lower_weights(squares, clip.shrunk(centre.clip_gradient, 2 * size), weights)",
           "clip.lower_weights(np.roll(squares, 1), clip.shrunk(centre.clip_gradient, 2 * size), weights)",
           (_BOUNDED,)),
    Mutant("forgotten for what weights take off", "clipping", "rows/clip.py",
           "out[i] = clipping_loss if clipping_loss < 1.0 else 1.0", "out[i] = clipping_loss if clipping_loss < 1e9 else 1.0", (_BOUNDED,)),
    Mutant("at a bound inferred from the data", "clipping", "rows/likelihood.py",
           "        shrunk = clip.shrunk(bound, size)\n",
           "        shrunk = clip.shrunk(bound / max(1.0, float(np.abs(self._table.rows[0]).max())), size)\n",
           (f"{_ROWS}test_whatever_one_row_holds_the_sum_moves_within_its_sensitivity",)),
    Mutant("of a unit that is named twice in a batch", "clipping", "rows/table.py",
           "not np.all(units[:-1] < units[1:])", "not np.all(units[:-1] <= units[1:])",
           (f"{_ROWS}test_units_that_would_break_the_sensitivity_are_refused",)),
    Mutant("of values remembered at another point", "clipping", "rows/likelihood.py",
           "        key = theta.tobytes()\n        for remembered", "        key = theta[:1].tobytes()\n        for remembered",
           (f"{_ROWS}test_log_likelihoods_are_remembered_by_the_whole_point_only",)),
    # Models ------------------------------------------------------------------------------------------------------
    Mutant("rows that depend on each other are accepted", "models", "rows/check.py",
           "_TOLERANCE = 1e-6", "_TOLERANCE = 1e6", ("rows/test_refusals.py::test_refused_with_the_reason",)),
    Mutant("row tables in priors are accepted", "models", "rows/split.py",
           "    _refuse_rows_in_priors(model, graphs, axes, lengths, n_rows, unit)\n", "",
           ("rows/test_refusals.py::test_refused_with_the_reason",)),
    Mutant("a parameter for each row is accepted", "models", "rows/split.py",
           "    _refuse_parameters_of_rows(model, n_rows, unit)\n", "",
           ("rows/test_refusals.py::test_refused_with_the_reason",)),
    Mutant("tables with an entry for each unit count as public", "models", "rows/likelihood.py",
           "            refuse_tables_of_units(model, self.unit_lengths)\n", "            pass\n",
           ("rows/test_refusals.py::test_tables_with_one_entry_for_each_unit_are_refused",)),
    Mutant("any operation may see rows", "models", "rows/allowed.py",
           "    objection = _objection_to_graph(outputs, set(rows))", "    objection = None",
           ("rows/test_allowed.py::test_what_is_not_on_the_list_is_refused_by_name",)),
    Mutant("an operation too many may see rows", "models", "rows/allowed.py",
           "    return _unknown(op)\n\n\ndef _unknown", "    return None\n\n\ndef _unknown",
           ("rows/test_allowed.py::test_what_is_not_on_the_list_is_refused_by_name",)),
    Mutant("whole numbers are divided by what a row holds", "models", "rows/allowed.py",
           "if not whole or _is_constant(node.inputs[1], lambda value: value > 0):", "if whole or not whole:",
           ("rows/test_allowed.py::test_what_is_not_on_the_list_is_refused_by_name",)),
    Mutant("an index out of range counts", "models", "rows/one_row.py",
           "if self._index_checks else log_likelihood", "if not self._index_checks else log_likelihood",
           (f"{_ROWS}test_an_index_out_of_range_is_a_row_without_influence",)),
    Mutant("tables in functions of the user's count as public", "models", "rows/split.py",
           "    refuse_tables_in_functions(model, lambda shape: n_rows not in shape and passes(shape))\n", "",
           ("rows/test_closures.py::test_a_table_in_a_function_is_refused",)),
    Mutant("functions inside of functions are not searched", "models", "model/functions.py",
           "            yield from _global_names(constant)", "            pass",
           (f"{_ACCEPTED}test_tables_that_functions_reach_are_refused",)),
    Mutant("attributes of classes are not searched", "models", "rows/closures.py",
           '    elif not is_of_library(found) and found.__module__ != "builtins":', "    elif False:",
           (f"{_ACCEPTED}test_tables_that_functions_reach_are_refused",)),
    Mutant("functions may hold arrays of any other length", "models", "rows/split.py",
           "lambda shape: n_rows not in shape and passes(shape))", "lambda shape: n_rows not in shape)",
           (f"{_ACCEPTED}test_tables_that_functions_reach_are_refused",)),
    Mutant("undeclared arrays pass", "models", "rows/split.py",
           "            if not is_leaf_of_rows and not passes(shape):", "            if False:",
           (f"{_ACCEPTED}test_undeclared_arrays_in_a_likelihood_are_refused",)),
    Mutant("numbers that are put together are no array", "models", "model/arrays.py",
           "isinstance(variable.owner.op, MakeVector | Join) and _is_fixed(variable, rows)", "False",
           (f"{_ACCEPTED}test_undeclared_arrays_in_a_likelihood_are_refused",)),
    Mutant("other types of variables are accepted", "models", "model/operations.py",
           "            _refuse_type(name, variable)\n", "            pass\n",
           (f"{_ACCEPTED}test_what_is_not_listed_is_refused_everywhere",)),
    Mutant("any operation may be in a model", "models", "model/operations.py",
           "    if not (_is_listed(kind, OPERATIONS) or _is_made_by_pymc(kind)):", "    if False:",
           (f"{_ACCEPTED}test_what_is_not_listed_is_refused_everywhere",)),
    Mutant("operations may hold tables", "models", "model/operations.py",
           "    if any(map(_is_state, _attributes(op))):", "    if False:",
           (f"{_ACCEPTED}test_what_is_not_listed_is_refused_everywhere",)),
    Mutant("graphs inside operations are not searched", "models", "model/operations.py",
           "if isinstance(op, HasInnerGraph)", "if False",
           (f"{_ACCEPTED}test_an_operation_inside_of_others_is_found",)),
    Mutant("transforms are not searched", "models", "rows/split.py",
           "    _refuse_unlisted_log_probabilities(model, graphs)\n", "",
           (f"{_ACCEPTED}test_an_operation_in_a_transform_is_found",)),
    Mutant("starting values of rows in the model", "models", "rows/split.py",
           "    refuse_rows_in_starts(model, unit, {n_rows}, starts)\n", "",
           (f"{_ACCEPTED}test_an_initval_of_rows_is_refused",)),
    Mutant("starting values of rows in the call", "models", "sampling.py",
           '    refuse_rows_in_starts(model, group.unit, lengths, _expressions(arguments["initvals"]))\n', "",
           (f"{_ACCEPTED}test_initvals_of_rows_are_refused_before_the_charge",)),
    Mutant("builders may compute from rows", "models", "model/builders.py",
           "            _mark(result, name)\n", "            pass\n",
           ("model/test_builders.py::test_a_builder_that_evaluates_rows_is_refused",)),
    Mutant("options that look private are ignored", "models", "_pymc_hook.py",
           '        refuse_table("pm.sample", kwargs)\n        refuse_privacy_keywords(original, kwargs)\n',
           '        refuse_table("pm.sample", kwargs)\n',
           ("test_arguments.py::test_an_option_that_looks_private_is_no_option_of_nuts",)),
    Mutant("options of step methods are not looked at", "models", "arguments.py",
           "for name in {*options, *of_steps} if", "for name in options if",
           ("test_arguments.py::test_an_option_that_looks_private_is_no_option_of_nuts",)),
    Mutant("tables in finished graphs count as public", "models", "rows/split.py",
           "    _refuse_other_tables(model, graphs, {leaf.variable for leaf in leaves}, n_rows, unit)\n", "",
           ("rows/test_closures.py::test_a_table_in_a_function_is_refused",)),
    Mutant("the number of rows is public in priors", "models", "rows/split.py",
           "if leaf not in graphs.sources.values()} | set(lengths)", "if leaf not in graphs.sources.values()}",
           ("rows/test_closures.py::test_a_prior_of_the_number_of_rows_is_refused",)),
    Mutant("a synthetic table may hold the data", "models", "origins.py",
           "tables = [[*_tables_of(each), *arrays_given_to(each)] for each in (model, other)]",
           "tables = [_tables_of(each) for each in (model, other)]",
           ("test_origins.py::test_a_function_called_twice_on_the_same_arrays_writes_no_synthetic_table",)),
    Mutant("Bambi's statistics of the data are accepted", "models", "sampling.py",
           "    refuse_bambi_statistics(model)\n", "",
           ("test_bambi_models.py::test_statistics_of_the_data_are_refused_with_what_to_pass",)),
    Mutant("minibatches of PyMC are accepted", "models", "rows/split.py",
           "    refuse_minibatches(model)\n", "",
           ("rows/test_minibatches.py::test_minibatches_of_pymc_are_refused_with_what_to_write",)),
    Mutant("missing values are not looked for", "models", "rows/split.py",
           'if value.dtype.kind == "f" and value.size and np.isnan(value.min()):', "if False:",
           ("test_sampling.py::test_missing_values_that_come_later_are_refused_by_the_name_of_their_table",)),
    # Number of units ------------------------------------------------------------------------------------------------
    Mutant("the grid is that of a protected number", "number of units", "release/curator.py",
           'n_public = rows.n_units if relation == "substitute" else None', "n_public = rows.n_units",
           (f"{_CURATOR}test_the_grid_knows_no_protected_number_of_units",)),
    Mutant("released beside counts without noise", "number of units", "release/clip_counts.py",
           "([*counts, n_protected], [*releases, 1])", "([*counts, n_protected], [*releases, 1e-9])",
           (f"{_CURATOR}test_where_the_number_of_units_is_protected_it_is_released_with_noise",)),
    Mutant("what weights take off is released relative to it", "number of units", "release/queries.py",
           '        if terms.n_units is None:\n            raise PrivacyError("The clipping loss',
           '        if terms.relation == "":\n            raise PrivacyError("The clipping loss',
           (f"{_CURATOR}test_what_weights_take_off_needs_a_public_number_of_units",)),
    Mutant("a query of a sampler's own class is answered", "batches", "release/queries.py",
           "    if not any(type(query) is known for known in QUERIES):", "    if not isinstance(query, QUERIES):",
           (f"{_CURATOR}test_a_query_of_a_samplers_own_class_is_refused",)),
    Mutant("a query is changed after it was paid for", "batches", "release/queries.py",
           "    return dataclasses.replace(query)", "    return query",
           (f"{_CURATOR}test_a_query_is_copied_before_it_is_paid_for",)),
    Mutant("a release holds the point that an expansion holds", "batches", "release/curator.py",
           "return tuple(point.copy() for point in query.where)", "return query.where",
           (f"{_HOSTILE}test_what_a_sampler_holds_does_not_move_an_expansion_point",)),
    Mutant("an array is held that an object says is a copy", "batches", "release/interface.py",
           "return np.asarray(theta, dtype=np.float64).copy()", "return np.array(theta, dtype=np.float64, subok=False)",
           (f"{_HOSTILE}test_what_a_sampler_holds_does_not_move_an_expansion_point",)),
    Mutant("clipped units of a batch are counted among those of all units", "batches", "release/curator.py",
           "        if query.sampled is None:  # a count", "        if True:  # a count",
           (f"{_HOSTILE}test_counts_of_all_units_tell_nothing_of_a_batch",)),
    Mutant("of a negative power, which may be nothing", "sensitivity", "release/queries.py",
           "    if not 0.0 < tempering < math.inf:", "    if tempering == math.inf:",
           (f"{_HOSTILE}test_a_power_that_is_not_positive_is_refused",)),
    Mutant("a class is asked whether it is one of the curator's", "batches", "release/queries.py",
           "if not any(type(query) is known for known in QUERIES):", "if type(query) not in QUERIES:",
           (f"{_HOSTILE}test_a_class_that_says_it_is_another_is_refused",)),
    Mutant("an expansion point of any shape", "batches", "rows/likelihood.py",
           "if theta.shape != (size,) or (preconditioner is not None and preconditioner.shape != (size, size)):",
           "if preconditioner is not None and preconditioner.shape != (size, size):",
           (f"{_HOSTILE}test_a_preconditioner_of_another_shape_is_refused",)),
    Mutant("a name of a sampler's own class", "counting", "release/interface.py",
           "return str.__str__(name)", "return str(name)", (f"{_HOSTILE}test_names_are_compared_by_their_letters",)),
    Mutant("a curator is copied", "counting", "release/curator.py",
           "    def __reduce_ex__(self, protocol: Any) -> NoReturn:", "    def _refuse(self, protocol: Any) -> NoReturn:",
           (f"{_HOSTILE}test_a_curator_is_not_copied",)),
    Mutant("a sum that was clipped more loosely than the query says", "sensitivity", "release/curator.py",
           "        if not exact.bound <= bound or exact.grid != grid:", "        if exact.grid != grid:",
           (f"{_CURATOR}test_a_sum_that_was_clipped_otherwise_is_not_released",)),
    # Counting ------------------------------------------------------------------------------------------------------
    Mutant("chains are forgotten", "counting", "planning.py",
           "_Asked(place, request.releases(chains), request.share * part, request.once)",
           "_Asked(place, request.releases(1), request.share * part, request.once)",
           (f"{_SAVED}test_a_sampled_plan_counts_all_chains",)),
    Mutant("chains are forgotten where costs add in rho", "counting", "plan.py",
           "count = self.count if self.once else self.count * chains", "count = self.count",
           (f"{_BUDGET}test_a_plan_counts_all_chains_and_tuning",)),
    Mutant("chains are forgotten where noise is given", "counting", "planning.py",
           "request.with_count(request.count * chains)", "request.with_count(request.count)",
           (f"{_SAVED}test_barker_runs_have_noise_that_is_given",)),
    Mutant("tuning draws are forgotten", "counting", "steps/penalty.py",
           "ReleaseRequest(self._kind, tune + draws, 1.0, 1)", "ReleaseRequest(self._kind, draws, 1.0, 1)",
           (f"{_CONTRACT}test_what_is_released_was_planned_and_charged[1-penalty-gaussian]",)),
    Mutant("the gradient at the start of a trajectory is forgotten", "counting", "steps/hmc.py",
           "gradients = iterations * self.n_leapfrog + (1 if self.reuse_gradient else iterations)",
           "gradients = iterations * self.n_leapfrog",
           (f"{_CONTRACT}test_what_is_released_was_planned_and_charged[1-hmc]",)),
    Mutant("what is released once is forgotten", "counting", "planning.py",
           "return [*once, *given, *noise_to_be_found]", "return [*given, *noise_to_be_found]",
           (f"{_CONTRACT}test_what_is_released_was_planned_and_charged[1-surrogate-tested]",)),
    Mutant("every kind of release spends the whole", "counting", "planning.py",
           "noise_for(each.releases.kind, each.releases.count, rho * each.share,",
           "noise_for(each.releases.kind, each.releases.count, rho,",
           (f"{_BUDGET}test_calibrate_then_account_stays_within_the_budget", f"{_LEAKS}test_no_private_input_is_in_the_tree")),
    Mutant("each chain may release what all chains may", "counting", "plan.py",
           "each.with_count(each.count // self.chains) for each", "each for each",
           (f"{_SAVED}test_a_step_s_plan_says_what_a_meter_needs",)),
    Mutant("every step has the first one's allowance", "counting", "sampling.py",
           "in enumerate(zip(group.steps, plan.steps, strict=True)):",
           "in enumerate(zip(group.steps, plan.steps[:1] * len(group.steps), strict=True)):",
           ("test_sampling.py::test_several_dp_steps_share_one_budget",)),
    Mutant("the meter does not count", "counting", "release/meter.py",
           "        self._left[kind] -= 1", "        pass", (f"{_CURATOR}test_a_release_beyond_the_plan_touches_no_data",)),
    Mutant("the meter does not count batches", "counting", "release/meter.py",
           "self._left_of[self._place(kind, places, noise_multiplier, batches, adds_noise)] -= 1",
           "self._place(kind, places, noise_multiplier, batches, adds_noise)",
           ("release/test_batches.py::test_the_meter_counts_every_event_by_itself",)),
    Mutant("rows are touched before the meter", "counting", "release/curator.py",
           "        self._meter.spend(query.kind, noise_multiplier, query.sampled, adds_noise=query.adds_noise)\n",
           "        if not isinstance(query, BarkerDecision):\n"
           "            released = self._noised(query, noise_multiplier)\n"
           "            self._meter.spend(query.kind, noise_multiplier, query.sampled, adds_noise=query.adds_noise)\n"
           "            return released\n"
           "        self._meter.spend(query.kind, noise_multiplier, query.sampled, adds_noise=query.adds_noise)\n",
           (f"{_CURATOR}test_a_release_beyond_the_plan_touches_no_data",)),
    Mutant("noise of NaN passes for enough", "counting", "release/meter.py",
           "elif not noise_multiplier >= self._paid[kind]:", "elif noise_multiplier < self._paid[kind]:",
           (f"{_CURATOR}test_less_noise_than_was_paid_for_is_refused",)),
    Mutant("less noise on batches than was paid for passes", "counting", "release/meter.py",
           " and noise_multiplier >= event.noise_needed:", ":",
           ("release/test_batches.py::test_the_meter_spends_from_the_cheapest_event_that_covers_a_release",)),
    Mutant("decisions are paid for as noise, and noise as decisions", "counting", "release/meter.py",
           "alike = alike and event.adds_noise == adds_noise", "pass",
           (f"{_HOSTILE}test_decisions_and_noisy_releases_are_not_paid_for_as_each_other",)),
    Mutant("the prelude is paid for by the chains", "counting", "release/curators.py",
           '"scheduled": tuple(scheduled_once)}', '"scheduled": tuple(scheduled)}',
           (f"{_HOSTILE}test_a_prelude_releases_what_it_paid_for_and_nothing_of_what_chains_did",)),
    Mutant("a prelude's allowance outlives it", "counting", "steps/base.py",
           "            chain.end()\n", "", (f"{_HOSTILE}test_what_a_prelude_leaves_over_ends_with_it",)),
    Mutant("a plan of no account is charged to none", "budget", "plan.py",
           '        _validate.choice("account", self.account, ("rho", "reserved"))\n', "",
           (f"{_HOSTILE}test_a_plan_of_no_account_or_no_figure_is_none",)),
    Mutant("one chain more than planned", "counting", "release/curators.py",
           "for chain in range(self._chains):", "for chain in range(self._chains + 1):",
           (f"{_CURATOR}test_no_more_curators_than_planned_and_none_after_the_run",)),
    Mutant("the prelude may run again", "counting", "release/curators.py",
           '        if not self._claim("once"):', '        if self._claim("once") is None:',
           (f"{_CURATOR}test_no_more_curators_than_planned_and_none_after_the_run",)),
    Mutant("curators outlive the run", "counting", "release/curators.py",
           "        shutil.rmtree(self._folder, ignore_errors=True)", "        pass",
           (f"{_CURATOR}test_no_more_curators_than_planned_and_none_after_the_run",)),
    Mutant("rows are looked at once more than was charged", "counting", "release/curator.py",
           "        exact = query.exact_sum(asked)\n", "        query.exact_sum(asked)\n        exact = query.exact_sum(asked)\n",
           (f"{_CONTRACT}test_rows_are_summed_as_often_as_was_charged",)),
    Mutant("every process opens the curators anew", "counting", "release/curators.py",
           'if self._claim(f"chain-{chain}"):', 'if self._claim(f"chain-{chain}-{os.getpid()}"):',
           ("test_sampling.py::test_a_fall_back_after_chains_have_begun_makes_no_release_twice",)),
    # Batches -----------------------------------------------------------------------------------------------------
    Mutant("batches of another probability than paid for", "batches", "release/batches.py",
           "return event.sampling == PoissonSampling(self.sampling_probability)",
           "return isinstance(event.sampling, PoissonSampling)",
           ("release/test_batches.py::test_the_meter_refuses_another_sampler_than_was_paid_for",)),
    Mutant("a sampler's own object draws", "batches", "release/queries.py",
           "set_fields(self, batches=None if self.batches is None else described(self.batches))", "pass",
           (f"{_CURATOR}test_a_batch_object_of_the_samplers_own_is_refused",)),
    Mutant("a batch is used twice", "batches", "release/curator.py",
           "        return Asked(self._rows, self._tally, self._terms, grid, batch)",
           '        batch = self.__dict__.setdefault("_batch", batch)\n'
           "        return Asked(self._rows, self._tally, self._terms, grid, batch)",
           (f"{_CURATOR}test_every_release_is_of_a_fresh_batch",)),
    Mutant("a batch takes everybody", "batches", "release/batches.py",
           "    if q == 1.0:\n        return np.arange", "    if q > 0.0:\n        return np.arange",
           ("release/test_batches.py::test_units_and_pairs_of_units_take_part_as_often_as_they_are_accounted_for",)),
    Mutant("what a centre says is asked twice", "batches", "release/query.py",
           "set_fields(self, point=plain_point(self.point), kind=plain_name(self.kind))", "pass",
           (f"{_CURATOR}test_what_a_centre_says_is_asked_once",)),
    Mutant("units of a batch are drawn with a bias", "batches", "release/batches.py",
           "words if beyond == 2**_WORD_BITS else words[words < np.uint64(beyond)]", "words",
           ("release/test_batches.py::test_uniform_values_reject_what_would_be_biased",)),
    # The budget ---------------------------------------------------------------------------------------------------
    Mutant("nothing is charged", "budget", "sampling.py",
           "    group.budget.charge(plan)\n", "", ("test_sampling.py::test_a_run_that_does_not_fit_is_refused_and_changes_nothing",)),
    Mutant("a run that ends is refunded", "budget", "steps/base.py",
           "        self._authorisation = None\n        self._chain = None\n        self.start()",
           "        self._authorisation = None\n        self._chain = None\n        self.budget._spent.clear()\n        self.start()",
           ("test_sampling.py::test_a_crash_refunds_nothing_and_ends_the_authorisation",)),
    Mutant("a second run is not refused", "budget", "filters.py",
           "together = math.fsum([self.spent(history), plan.rho])", "together = plan.rho",
           (f"{_BUDGET}test_a_second_run_that_does_not_fit_changes_nothing",)),
    Mutant("each reserved run spends the whole", "budget", "filters.py",
           "epsilon, delta = self.epsilon - spent[0], self.delta - spent[1]",
           "epsilon, delta = self.epsilon, self.delta - spent[1]",
           (f"{_SAVED}test_sampled_runs_reserve_and_add",)),
    Mutant("reserved runs are not added", "budget", "filters.py",
           "epsilon, delta = self.spent([*history, plan])", "epsilon, delta = self.spent([plan])",
           (f"{_SAVED}test_sampled_runs_reserve_and_add",)),
    Mutant("a plan's own figures are believed", "budget", "filters.py",
           "        if not self.cost(plan) <= plan.epsilon * (1.0 + 1e-9):", "        if plan.epsilon < 0.0:",
           (f"{_SAVED}test_a_plan_s_own_figures_are_not_trusted",)),
    Mutant("a reserved run is accounted at the budget's delta", "budget", "filters.py",
           "account(plan.releases, plan.delta * (1.0 - EPSILON_SLACK), self.relation)",
           "account(plan.releases, self.delta * (1.0 - EPSILON_SLACK), self.relation)",
           (f"{_SAVED}test_a_reserved_run_is_accounted_at_its_own_delta",)),
    Mutant("Gaussian runs have the delta that is set aside", "budget", "filters.py",
           "GaussianFilter(epsilon * rest, delta * rest * math.exp(-epsilon * reserved_share))",
           "GaussianFilter(epsilon * rest, delta)",
           (f"{_SAVED}test_gaussian_runs_first_leave_nothing_to_reserve_unless_it_was_set_aside",)),
    Mutant("a plan of the other relation is charged", "budget", "budget.py",
           "        if plan.relation != self._relation:", "        if not plan.relation:",
           (f"{_BUDGET}test_plans_of_another_relation_are_refused",)),
    Mutant("a forked process spends what its parent does", "budget", "budget.py",
           "if self._ledger is None and os.getpid() != self._process:", "if self._process is None:",
           (f"{_BUDGET}test_a_forked_process_cannot_spend_what_its_parent_can",)),
    Mutant("a copy can be spent again", "budget", "budget.py",
           '    def __deepcopy__(self, memo: dict[int, Any]) -> "PrivacyBudget":\n        return self\n',
           '    def __deepcopy__(self, memo: dict[int, Any]) -> "PrivacyBudget":\n'
           "        return PrivacyBudget(self._epsilon, self._delta, self._relation)\n",
           (f"{_BUDGET}test_copies_cannot_be_spent_twice",)),
    Mutant("a saved budget is not locked while it is read", "budget", "ledger.py",
           '            connection.execute("BEGIN IMMEDIATE")\n            try:\n                history, digest = self._read(connection)\n',
           "            history, digest = self._read(connection)\n"
           '            connection.execute("BEGIN IMMEDIATE")\n            try:\n',
           (f"{_FAULTS}test_the_file_is_locked_from_reading_to_writing",)),
    Mutant("a saved budget is not locked", "budget", "ledger.py",
           'connection.execute("BEGIN IMMEDIATE")\n            try:', 'connection.execute("BEGIN")\n            try:',
           (f"{_FAULTS}test_the_file_is_locked_from_reading_to_writing",)),
    Mutant("a charge is not written down", "budget", "ledger.py",
           '                connection.execute("COMMIT")\n                self._seen',
           '                connection.execute("ROLLBACK")\n                self._seen',
           (f"{_SAVED}test_processes_cannot_spend_the_same_money",)),
    Mutant("a loss of power undoes a charge", "budget", "ledger.py",
           '            connection.execute("PRAGMA synchronous = EXTRA")\n            yield',
           '            connection.execute("PRAGMA synchronous = OFF")\n            yield',
           (f"{_FAULTS}test_a_spend_outlives_a_loss_of_power",)),
    Mutant("a damaged file is believed", "budget", "ledger.py",
           "            if stored != digest:", "            if stored is digest:",
           (f"{_FAULTS}test_damaged_files_are_refused_or_unharmed",)),
    Mutant("an older copy of the file is believed", "budget", "ledger.py",
           "if len(rows) < count or (seen is not None and digests[count] != seen):", "if count < 0:",
           (f"{_FAULTS}test_an_older_copy_in_the_file_s_place_is_refused",)),
    # Accounting --------------------------------------------------------------------------------------------------
    Mutant("subsampling is counted twice", "accounting", "accounting/loss_curves.py",
           "delta[inside] = q * gaussian_curve", "delta[inside] = q * q * gaussian_curve",
           ("accounting/test_loss_distribution.py::test_equal_steps_match_reference_in_both_directions",)),
    Mutant("adding a row is looked at, removing one is not", "accounting", "accounting/loss_distribution.py",
           "    for direction in range(directions):", "    for direction in (directions - 1,):",
           ("accounting/test_loss_distribution.py::test_equal_steps_match_reference_in_both_directions",)),
    Mutant("Gaussian releases cost half", "accounting", "accounting/events.py",
           "return self.count / (2.0 * self.noise_multiplier**2)", "return self.count / (4.0 * self.noise_multiplier**2)",
           ("accounting/test_account.py::test_draws_of_hmc_match_reference",)),
    Mutant("a bound for batches without its factor", "accounting", "accounting/renyi_bounds.py",
           "(j - 1.0) * own + _LOG_2", "(j - 1.0) * own",
           ("accounting/test_renyi.py::test_sampling_without_replacement_matches_reference",)),
    Mutant("half of a Barker decision's cost", "accounting", "accounting/renyi_bounds.py",
           "/ (2.0 * (order - 1.0)) + 2.0 * order / rest", "/ (2.0 * (order - 1.0)) + order / rest",
           ("accounting/test_renyi.py::test_barker_matches_reference",)),
    Mutant("a relation without a theorem is accounted for", "accounting", "accounting/account.py",
           "        if relation not in each.relations:", "        if not each.relations:",
           ("accounting/test_account.py::test_events_are_refused_under_relations_without_a_theorem",)),
    Mutant("an event says itself what it costs", "accounting", "accounting/account.py",
           "if not any(type(each) is known for known in KINDS_OF_RELEASES):", "if not isinstance(each, KINDS_OF_RELEASES):",
           ("accounting/test_account.py::test_events_that_say_themselves_what_they_cost_are_refused",)),
    Mutant("NaN passes for a figure", "accounting", "_validate.py",
           "    if not math.isfinite(number):", "    if math.isinf(number):",
           ("accounting/test_account.py::test_bad_numbers_never_give_a_figure",)),
    # What leaves ---------------------------------------------------------------------------------------------------
    Mutant("observed data are kept", "what leaves", "publish.py",
           "    return DataTree.from_dict(groups)\n",
           '    groups["observed_data"] = tree["observed_data"].to_dataset()\n    return DataTree.from_dict(groups)\n',
           (f"{_LEAKS}test_no_private_input_is_in_the_tree",)),
    Mutant("deterministics of rows are kept", "what leaves", "publish.py",
           "            private.append(rv.name)\n        elif any(_is_table", "            kept.append(rv.name)\n        elif any(_is_table",
           (f"{_LEAKS}test_no_private_input_is_in_the_tree",)),
    Mutant("deterministics as long as the table are kept", "what leaves", "publish.py",
           " or _has_length(rv, named, lengths):", ":",
           ("rows/test_closures.py::test_what_counts_or_names_people_does_not_leave",)),
    Mutant("names of units are kept", "what leaves", "publish.py",
           " or not dims.isdisjoint(named) or", " or",
           ("rows/test_closures.py::test_names_of_units_do_not_leave",)),
    Mutant("deterministics of other tables are kept unasked", "what leaves", "publish.py",
           "            unsure.append(rv.name)", "            kept.append(rv.name)",
           (f"{_LEAKS}test_deterministics_of_other_tables_leave_on_request_only",)),
    Mutant("a budget without a private step is swallowed", "what leaves", "_pymc_hook.py",
           '        refuse_budget("pm.sample", args, kwargs)\n', "",
           ("test_arguments.py::test_a_budget_without_a_dp_step_is_refused",)),
    Mutant("posterior predictive draws come without a warning", "what leaves", "_pymc_hook.py",
           "    _replace_function(pm.sample_posterior_predictive, functools.partial(_warning, _POSTERIOR_PREDICTIVE, \"trace\"))\n", "",
           ("test_pymc_hook.py::test_posterior_predictive_draws_of_a_private_result_come_with_a_warning",)),
    Mutant("coordinates of rows are kept", "what leaves", "publish.py",
           "    return DataTree.from_dict(groups)\n",
           '    groups["privacy"] = groups["privacy"].assign_coords(tree["observed_data"].to_dataset().coords)\n'
           "    return DataTree.from_dict(groups)\n",
           (f"{_LEAKS}test_no_private_input_is_in_the_tree",)),
    Mutant("messages of errors that end a run are passed on", "what leaves", "sampling.py",
           "    if own or not isinstance(error, Exception):\n        with contextlib", "    if own or error is not None:\n        with contextlib",
           ("test_interrupted.py::test_an_error_in_a_step_keeps_the_draws_and_says_no_value",)),
    Mutant("one attribute too many is allowed", "what leaves", "publish.py",
           '"inference_library_version", "tuning_steps")', '"inference_library_version", "tuning_steps", "sampling_time")',
           (f"{_LEAKS}test_no_private_input_is_in_the_tree",)),
    Mutant("an exact log-likelihood among the statistics", "what leaves", "steps/base.py",
           '        stats["epsilon_charged"] = self.chain.epsilon_charged\n',
           '        stats["epsilon_charged"] = self.chain.epsilon_charged\n'
           '        stats["acceptance_rate"] = float(self.chain._curator._rows.all_log_likelihoods(own.whole).sum())\n',
           (f"{_CONTRACT}test_two_tables_with_the_same_releases_publish_the_same_tree[hmc]",)),
    Mutant("a run without noise says that it is private", "what leaves", "publish.py",
           """        problems.append("the budget's epsilon is infinite: no noise was added but what settings ask for")""",
           "        pass", (f"{_INFINITE}test_every_sampler_runs_and_says_that_nothing_is_private",)),
    Mutant("a seeded run says that it is private", "what leaves", "publish.py",
           '        problems.append("privacy noise was seeded (insecure_seed)")', "        pass",
           (f"{_CONTRACT}test_an_insecure_seed_reproduces_and_is_marked[hmc]",)),
    Mutant("a run after one that was not private says that it is", "what leaves", "planning.py",
           'private=all(step.private for step in steps) and not left.unlimited,', "private=True,",
           (f"{_LEAKS}test_a_run_after_one_that_was_not_private_says_so",)),
    Mutant("log-likelihoods of rows may be asked for", "what leaves", "sampling.py",
           '_ALLOWED_IDATA_OPTIONS = {"include_transformed"}', '_ALLOWED_IDATA_OPTIONS = {"include_transformed", "log_likelihood"}',
           ("test_sampling.py::test_bad_options_are_refused_before_anything_is_charged",)),
    Mutant("a worker gets the model's budget and releases", "what leaves", "steps/base.py",
           '            "budget": None,\n', "", (f"{_CONTRACT}test_a_step_carries_no_data_and_runs_only_when_paid_for[hmc]",)),
    Mutant("an argument's values stand in the message", "what leaves", "_validate.py",
           'shown = repr(value) if plain else f"a {type(value).__name__}"', "shown = repr(value)",
           ("privacy/test_fuzz.py::test_arrays_are_not_shown_in_messages",)),
    # Sizes, centred scores, expected curvatures --------------------------------------------------------------------
    Mutant("counts by parameter as if there were one", "sensitivity", "release/sizes.py",
           "return math.sqrt(self.theta.size) * ROOM_OF_COUNTS", "return ROOM_OF_COUNTS",
           (f"{_SIZES}test_coordinate_sizes_are_numpys_histograms",)),
    Mutant("counts that differ by one bound at most", "sensitivity", "release/query.py",
           "return min(terms.factor, math.sqrt(2.0))", "return 1.0",
           (f"{_SIZES}test_replacing_a_row_moves_no_sum_by_more_than_declared",
            f"{_CENTRED}test_replacing_a_row_moves_no_sum_by_more_than_declared")),
    Mutant("bounded scores as if they were not negative", "sensitivity", "release/sizes.py",
           "class BoundedScore(Query):", "class BoundedScore(NonNegative):",
           (f"{_SIZES}test_replacing_a_row_moves_no_sum_by_more_than_declared",)),
    Mutant("centred scores as if they were not negative", "sensitivity", "release/centred.py",
           "class CentredScore(AtExpansionPoint, Query):", "class CentredScore(AtExpansionPoint, NonNegative):",
           (f"{_CENTRED}test_a_row_can_move_them_as_far_as_declared",)),
    Mutant("half the bound of a bounded score", "sensitivity", "release/sizes.py",
           "return asked.rows.sum_over_units(entries, 1, self.clip_bound, asked.grid)",
           "return asked.rows.sum_over_units(lambda chunk: 2.0 * entries(chunk).clip(-self.clip_bound, self.clip_bound),"
           " 1, 2.0 * self.clip_bound, asked.grid)",
           (f"{_SIZES}test_a_bounded_score_is_the_sum_of_cut_entries",)),
    Mutant("half the bound of a centred score", "sensitivity", "release/centred.py",
           "        return self.point.clip_gradient\n", "        return 0.5 * self.point.clip_gradient\n",
           (f"{_CENTRED}test_a_row_can_move_them_as_far_as_declared",)),
    Mutant("a centred score that is not clipped last of all", "clipping", "release/centred.py",
           "return asked.rows.sum_over_units(centred, self.point.theta.size, bound, asked.grid)",
           "found = asked.rows.sum_over_units(centred, self.point.theta.size, 2.0 * bound, asked.grid)\n"
           "        return ClippedSum(found.integers, found.grid, bound, found.n_clipped)",
           (f"{_CENTRED}test_a_response_that_the_model_does_not_expect_moves_it_no_farther",)),
    Mutant("no room for truncated curvatures", "sensitivity", "release/centred.py",
           "return float(size * (size + 1) // 2)", "return 0.0",
           (f"{_CENTRED}test_the_room_for_truncation_is_enough",)),
    Mutant("expected curvatures of scores of a negative length", "sensitivity", "release/centred.py",
           "if not self.point.clip_gradient > 0.0:", "if not self.point.clip_gradient > -2.0:",
           (f"{_CENTRED}test_bounds_that_cannot_be_kept_are_refused_before_they_are_paid",)),
    Mutant("the mean over responses is of the row's own", "responses", "rows/responses.py",
           "np.full_like(rows[self.place], response)", "np.maximum(rows[self.place], response)",
           (f"{_RESPONSES}test_nothing_is_a_function_of_a_rows_own_response",)),
    Mutant("probabilities of responses relative to the whole chunk", "responses", "rows/responses.py",
           "        known = 0.0 < total < np.inf\n", "        total += 1e-9 * np.sum(np.exp(logs))\n        known = 0.0 < total < np.inf\n",
           (f"{_CENTRED}test_sums_and_counts_are_those_of_the_parts_of_a_table",)),
    Mutant("responses that the table cannot hold", "silence", "rows/responses.py",
           "values = tuple(value for value in values if value <= np.iinfo(held).max)", "pass",
           (f"{_RESPONSES}test_responses_are_numbers_that_the_table_can_hold",)),
    Mutant("a response of no probability silences a row", "responses", "rows/expansion.py",
           "yield np.where(probabilities > 0.0, scores, 0.0), probabilities", "yield scores, probabilities",
           (f"{_CENTRED}test_a_preconditioner_without_end_silences_no_row_by_the_others",)),
    Mutant("bins by a rounded logarithm", "bins", "release/histograms.py",
           "    _, exponents = np.frexp(sizes)\n    found: FloatArray = exponents - 1.0\n",
           "    found: FloatArray = np.floor(np.log2(np.abs(sizes)))\n",
           (f"{_SIZES}test_a_size_at_an_edge_is_in_the_bin_above",)),
    Mutant("bins relative to the largest of all rows", "bins", "release/histograms.py",
           "octaves(squares / smallest**2)", "octaves(squares / (smallest**2 * np.nanmax(squares)))",
           (f"{_SIZES}test_the_sum_is_that_of_the_parts_of_a_table",)),
    Mutant("counts of rows whose score is no number", "bins", "release/histograms.py",
           "np.where(unknown, 0.0, 1.0)", "np.where(unknown, 1.0, 1.0)",
           (f"{_SIZES}test_a_row_without_a_score_is_counted_nowhere",)),
    Mutant("an octave that is refused while rows are read", "silence", "release/histograms.py",
           "if abs(self.lowest) > _MOST_OCTAVES:", "if False:",
           (f"{_SIZES}test_what_has_no_sensitivity_is_refused_before_it_is_paid",)),
    Mutant("an entry of the score that is not there", "silence", "release/sizes.py",
           "if not 0 <= self.place < self.theta.size:", "if not self.place < self.theta.size:",
           (f"{_SIZES}test_what_has_no_sensitivity_is_refused_before_it_is_paid",)),
    Mutant("a point of sizes of any shape", "batches", "release/sizes.py",
           "        asked.rows.refuse_other_shapes(self.point.theta, self.point.preconditioner)\n", "",
           (f"{_SIZES}test_points_of_another_shape_are_refused_for_any_table",)),
    # What an expansion misses of gradients and log-ratios --------------------------------------------------------
    Mutant("of gradients along axes at twice the clip bound", "clipping", "release/gradients.py",
           "        return asked.rows.sum_over_units(\n"
           "            lambda chunk: self._along(chunk).T, size, self.clip_bound, asked.grid, units=asked.batch\n        )",
           "        found = asked.rows.sum_over_units(\n"
           "            lambda chunk: self._along(chunk).T, size, 2.0 * self.clip_bound, asked.grid, units=asked.batch\n"
           "        )\n        return ClippedSum(found.integers, found.grid, self.clip_bound, found.n_clipped)",
           (f"{_GRADIENTS}test_replacing_an_ordinary_row_moves_no_sum_by_more_than_declared",)),
    Mutant("of gradients along axes that are twice as long", "clipping", "release/gradients.py",
           "lambda chunk: self._along(chunk).T, size,",
           "lambda chunk: 2.0 * self._along(chunk).T, size,",
           (f"{_GRADIENTS}test_what_is_missed_is_that_of_a_loop_over_units",)),
    Mutant("gradients along axes of all units, for a batch", "batches", "release/gradients.py",
           "asked.grid, units=asked.batch\n", "asked.grid\n",
           (f"{_GRADIENTS}test_a_sum_over_a_batch_is_that_of_its_units_and_so_is_its_count",)),
    Mutant("gradients along axes as if they were not negative", "sensitivity", "release/gradients.py",
           "class PreconditionedGradient(_OfGradients, Query):", "class PreconditionedGradient(_OfGradients, NonNegative):",
           (f"{_GRADIENTS}test_a_row_can_move_them_as_far_as_declared",)),
    Mutant("half the bound of gradients along axes", "sensitivity", "release/gradients.py",
           "        return self.clip_bound\n", "        return 0.5 * self.clip_bound\n",
           (f"{_GRADIENTS}test_a_row_can_move_them_as_far_as_declared",)),
    Mutant("half the bound of counts by size", "sensitivity", "release/histograms.py",
           "return ROOM_OF_COUNTS", "return 0.5 * ROOM_OF_COUNTS",
           (f"{_GRADIENTS}test_sizes_are_numpys_histograms",)),
    Mutant("weights of units are forgotten beyond the expansion", "clipping", "release/gradients.py",
           "            found *= kept_by(", "            kept_by(",
           (f"{_GRADIENTS}test_what_is_missed_is_that_of_a_loop_over_units",)),
    Mutant("axes of any shape", "batches", "release/gradients.py",
           "        asked.rows.refuse_other_shapes(self.prediction.theta, self.axes)\n", "",
           (f"{_GRADIENTS}test_arrays_of_another_shape_are_refused_for_any_table",)),
    Mutant("an expansion of gradients of any shape", "batches", "release/gradients.py",
           "        asked.rows.refuse_other_shapes(self.point.theta, self.point.preconditioner)\n", "",
           (f"{_GRADIENTS}test_arrays_of_another_shape_are_refused_for_any_table",)),
    Mutant("predicted gradients of any shape", "batches", "release/gradients.py",
           "        asked.rows.refuse_other_shapes(self.prediction.direction, self.prediction.jacobian)\n", "",
           (f"{_GRADIENTS}test_arrays_of_another_shape_are_refused_for_any_table",)),
    Mutant("bins are not refused before rows are read", "silence", "release/histograms.py",
           "if not 1 <= self.bins <= _MOST_BINS:", "if False:",
           (f"{_GRADIENTS}test_what_has_no_sensitivity_is_refused_before_it_is_paid_and_before_rows_are_read",)),
    Mutant("a smallest norm without a square", "silence", "release/histograms.py",
           "if not SMALLEST_CLIP_BOUND <= self.smallest <= LARGEST_CLIP_BOUND:", "if False:",
           (f"{_GRADIENTS}test_what_has_no_sensitivity_is_refused_before_it_is_paid_and_before_rows_are_read",)),
    Mutant("curvatures that are not known are refused where there are rows", "silence", "release/gradients.py",
           "            asked.rows.refuse_without_second_order()\n", "            pass\n",
           (f"{_GRADIENTS}test_curvatures_that_are_not_known_are_refused_for_any_table",)),
    Mutant("predictions of any shape are refused where there are rows", "silence", "rows/expansion.py",
           "        self._units.refuse_other_shapes(prediction.direction)\n", "",
           (f"{_GRADIENTS}test_predictions_of_another_shape_are_refused_for_any_table",)),
    Mutant("a sampler's own object draws batches of gradients", "batches", "release/gradients.py",
           "batches=None if self.batches is None else described(self.batches),", "batches=self.batches,",
           (f"{_HOSTILE}test_batches_of_a_samplers_own_are_refused",)),
    Mutant("arrays of predicted gradients are held by others", "batches", "release/interface.py",
           "        plain_vector(prediction.jacobian),\n", "        prediction.jacobian,\n",
           (f"{_HOSTILE}test_nothing_of_what_a_sampler_describes_is_held_by_anybody_else",)),
    Mutant("an expansion of log-ratios is held by others", "batches", "release/interface.py",
           "return Expanded(plain_point(expanded.point), plain_prediction(expanded.old), plain_prediction(expanded.new))",
           "return expanded",
           (f"{_HOSTILE}test_nothing_of_what_a_sampler_describes_is_held_by_anybody_else",)),
    Mutant("forgotten for residuals of batches", "clipping", "rows/expansion.py",
           "clip.write_clipped_differences(after, before, clip.shrunk(bound, 1),",
           "clip.write_clipped_differences(after, before, clip.shrunk(1e9 * bound, 1),",
           (f"{_GRADIENTS}test_no_log_ratio_behind_a_decision_is_beyond_its_bound",
            f"{_GRADIENTS}test_replacing_a_row_moves_no_sum_of_a_batch_by_more_than_declared")),
    Mutant("residuals of batches at twice the prescribed bound", "sensitivity", "release/queries.py",
           "residual_moments(move.old, move.new, clip, grid, units=units)",
           "residual_moments(move.old, move.new, 2.0 * clip, grid, units=units)",
           (f"{_GRADIENTS}test_no_log_ratio_behind_a_decision_is_beyond_its_bound",)),
    Mutant("residuals of a batch with the weights of other units", "batches", "rows/expansion.py",
           "weights, of_curvatures = weights[units], of_curvatures[units]",
           "weights, of_curvatures = weights[: len(units)], of_curvatures[: len(units)]",
           (f"{_GRADIENTS}test_residuals_of_a_batch_are_those_of_the_whole_and_odd",)),
    Mutant("decisions' clipped units are counted at another bound", "sensitivity", "release/queries.py",
           "_clipped_log_ratios(asked.rows, move, self._clip,", "_clipped_log_ratios(asked.rows, move, 0.5 * self._clip,",
           (f"{_GRADIENTS}test_counts_are_of_what_an_expansion_misses_beyond_the_prescribed_bound",)),
    Mutant("decisions at a power of zero", "sensitivity", "release/queries.py",
           '        """Refuse powers that are not positive, which no bound is prescribed for."""\n        _refuse_power(self.tempering)\n',
           '        """Refuse powers that are not positive, which no bound is prescribed for."""\n',
           (f"{_GRADIENTS}test_what_has_no_sensitivity_is_refused_before_it_is_paid_and_before_rows_are_read",)),
    # What samplers learn ---------------------------------------------------------------------------------------------
    Mutant("a prelude is not paid for", "counting", "steps/learning_step.py",
           "return [] if self.learning is None else self.learning.requests()", "return []",
           (f"{_CONTRACT}test_what_is_released_was_planned_and_charged[1-learned-hmc]",)),
    Mutant("the score of a prelude is not paid for", "counting", "steps/prelude/learning.py",
           '        requests.append(ReleaseRequest("score", 1, self.shares.score, self.size, once=True))\n', "",
           (f"{_CONTRACT}test_what_is_released_was_planned_and_charged[1-learned-hmc]",)),
    Mutant("chains spend what the prelude has spent", "counting", "steps/base.py",
           "replace(each, share=each.share * part) if", "replace(each, share=each.share) if",
           (f"{_CONTRACT}test_what_is_released_was_planned_and_charged[1-learned-hmc]",)),
    Mutant("a pilot asks the curator", "counting", "steps/learning_step.py",
           "        if self._pilot is not None:\n            return self._pilot\n", "",
           (f"{_CONTRACT}test_what_is_released_was_planned_and_charged[1-learned-hmc]",)),
    Mutant("less noise of gradients beyond an expansion than was paid for", "noise", "steps/target.py",
           "return self._chain.release(replace(query, batches=batches, counted=counted), multiplier)",
           "return self._chain.release(replace(query, batches=batches, counted=counted), 0.5 * multiplier)",
           (f"{_CONTRACT}test_what_is_released_was_planned_and_charged[1-learned-sgld]",)),
    # Tables beside a model ------------------------------------------------------------------------------------------
    Mutant("a batch named by places in the whole table", "tables", "rows/partitioned.py",
           "units[cuts[i] : cuts[i + 1]] - self._begins[i]", "units[cuts[i] : cuts[i + 1]] % self._partitions.lengths[i]",
           (f"{_PARTITIONED}test_every_sum_has_the_same_bits_however_the_table_is_cut",)),
    Mutant("units named twice, in two partitions", "tables", "rows/partitioned.py",
           "self._split(checked_units(units, self.n_units))", "self._split(units)",
           (f"{_PARTITIONED}test_units_that_would_count_twice_or_are_not_there_are_refused",)),
    Mutant("any method asked of partitions", "tables", "rows/partitioned.py",
           "if self.name not in (OF_ROWS if self.point is None else OF_EXPANSION):", "if False:",
           (f"{_PARTITIONED}test_wrong_arguments_are_refused_before_a_partition_is_asked",)),
    Mutant("sums of other bounds added", "tables", "rows/clipped_sum.py",
           "if self.grid != other.grid or self.bound != other.bound or", "if",
           (f"{_PARTITIONED}test_sums_of_different_bounds_are_not_added",)),
    Mutant("units with rows in two blocks of a file", "tables", "tables/files.py",
           "if np.any(codes[1:] < codes[:-1]):", "if False:",
           (f"{_TABLES}test_files_that_are_not_sorted_by_unit_are_refused",)),
    Mutant("a unit cut at the end of a block of a file", "tables", "tables/files.py",
           'cut = int(np.searchsorted(codes, codes[-1], side="left"))', "cut = len(codes) - 1",
           (f"{_TABLES}test_units_of_several_rows_are_whole_wherever_blocks_end",)),
    Mutant("rows twice, in two files", "tables", "tables/files.py",
           "if len({(path.stat().st_dev, path.stat().st_ino) for path in found}) < len(found):", "if False:",
           (f"{_TABLES}test_files_that_would_count_rows_twice_are_refused",)),
    Mutant("files changed while they are read", "tables", "tables/local.py",
           "        self._source.refuse_changes()  # while it was read\n", "",
           (f"{_TABLES}test_a_file_that_changes_while_it_is_read_is_refused",)),
    Mutant("missing entries of a masked array", "tables", "tables/columns.py",
           "bool(np.ma.is_masked(column))", "False",
           (f"{_TABLES}test_masked_entries_are_missing",)),
    Mutant("the template's number of units", "tables", "steps/base.py",
           "or self._n_units_given is not None or self.beside_a_table:", "or self._n_units_given is not None:",
           (f"{_TABLES}test_draws_are_those_of_the_model_on_the_rows",)),
    Mutant("a unit in two blocks of a cluster", "tables", "tables/workers.py",
           "            _refuse_split_units(recipe, place, piece)\n", "",
           (f"{_ON_DASK}test_a_unit_in_two_blocks_is_refused",)),
    Mutant("a block that was read again and differs", "tables", "tables/workers.py",
           "if block.facts.digest != digest:", "if False:",
           (f"{_ON_DASK}test_a_part_of_the_table_that_is_read_again_and_differs_ends_the_run",)),
    Mutant("messages of errors that are not the package's", "tables", "tables/workers.py",
           'str(error) if own else ""', "str(error)",
           (f"{_WORKERS}test_errors_of_others_come_back_by_name_alone",)),
    Mutant("other bits on a worker", "tables", "tables/workers.py",
           "if probe.bits_of(template) != recipe.bits:", "if False:",
           (f"{_ON_DASK}test_a_worker_that_computes_other_bits_is_refused",)),
)  # fmt: skip


def where(mutant: Mutant, root: Path = ROOT) -> int:
    """Return how often the text of a mutant stands in the package."""
    return (root / "pymc_dp" / mutant.file).read_text().count(mutant.old)


def _pytest(folder: Path, tests: tuple[str, ...], cache: Path) -> tuple[int, str]:
    """Run tests in a fork of this process, which has imported what takes long; return how pytest ended, and why."""
    process = os.fork()
    if not process:
        code = 99
        try:
            output = os.open(folder / "output", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(folder)
            os.environ |= {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(cache)}
            sys.dont_write_bytecode = True
            sys.path.insert(0, str(folder))
            options = ["-n", "0", "-x", "-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:doctest", "-o", "addopts="]
            options += ["--hypothesis-seed=0"]  # the same examples in every run
            code = int(pytest.main([*options, *(f"tests/{test}" for test in tests)]))
        finally:
            sys.stdout.flush()
            os._exit(code)
    began = time.monotonic()
    while not (ended := os.waitpid(process, os.WNOHANG))[0]:
        if time.monotonic() - began > _SECONDS:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return -1, "took too long"
        time.sleep(0.1)
    lines = (folder / "output").read_text(errors="replace").splitlines()
    why = next((line[1:].strip() for line in lines if line.startswith("E ")), lines[-1] if lines else "")
    return os.waitstatus_to_exitcode(ended[1]), why


def convicted(mutant: Mutant, folder: Path, cache: Path) -> tuple[bool, str]:
    """Apply a mutant to the package in `folder`, run its tests, take it back."""
    path = folder / "pymc_dp" / mutant.file
    original = path.read_text()
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        compile(path.read_text(), path, "exec")
        # A kernel that was compiled into another is not compiled anew when its own file changes.
        fresh = Path(tempfile.mkdtemp(dir=folder)) if mutant.file.startswith("rows/") else cache
        code, why = _pytest(folder, mutant.tests, fresh)
    finally:
        path.write_text(original)
    return code == 1, why if code == 1 else f"pytest ended with {code}: {why}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("words", nargs="*", help="only mutants whose name or class holds one of these words")
    parser.add_argument("--no-baseline", action="store_true", help="do not first run the tests on the package as it is")
    asked = parser.parse_args(arguments)
    chosen = [m for m in MUTANTS if not asked.words or any(word in f"{m.sort}: {m.name}" for word in asked.words)]
    misplaced = [m for m in chosen if where(m) != 1]
    for mutant in misplaced:
        print(f"TEXT STANDS {where(mutant)} TIMES in {mutant.file}: {mutant.sort}: {mutant.name}")
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        for part in ("pymc_dp", "tests", "notebooks"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.ipynb"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        cache = folder / "cache"
        if not asked.no_baseline:
            tests = tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
            code, why = _pytest(folder, tests, cache)
            if code != 0:
                print(f"The tests fail on the package as it is: {why}")
                return 1
        survived = []
        for mutant in chosen:
            if mutant in misplaced:
                continue
            began = time.monotonic()
            found, why = convicted(mutant, folder, cache)
            if not found:
                survived.append(mutant)
            verdict = "convicted" if found else "SURVIVED "
            print(
                f"{verdict} {mutant.sort}: {mutant.name} | {time.monotonic() - began:.0f} s | {why[:140]}", flush=True
            )
    finally:
        shutil.rmtree(folder)
    print(f"{len(chosen) - len(survived) - len(misplaced)} of {len(chosen)} convicted, {len(survived)} survived")
    return int(bool(survived or misplaced))


if __name__ == "__main__":
    sys.exit(main())
