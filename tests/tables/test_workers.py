"""What workers do, in this process: whatever goes wrong comes back, and nothing is raised."""

from types import SimpleNamespace

import numpy as np
import pytest

from pymc_dp.exceptions import UnsupportedTable
from pymc_dp.rows import probe
from pymc_dp.rows.likelihood import RowInput
from pymc_dp.tables.columns import Columns
from pymc_dp.tables.on_dask import _Connection
from pymc_dp.tables.workers import Answering, Facts, Recipe, Refusal, block_numbers, evaluate, facts_of, load

CANARY = 987654.3215
COLUMNS = Columns((("u",),), (RowInput(("x",), np.dtype(np.float64), ()),), None)


def recipe(**changes):
    settings = {"template": b"", "bits": "", "versions": {}, "columns": COLUMNS, "salt": b"s" * 16, "n_blocks": 2}
    return Recipe(**(settings | changes))


class Broken(dict):
    """A piece of a table whose reader fails, with a row in its message."""

    def __getitem__(self, name):
        raise ValueError(f"row {CANARY}")


def test_errors_of_others_come_back_by_name_alone():
    refusal = load(recipe(), 0, [Broken()])
    assert refusal == Refusal("ValueError")
    assert str(CANARY) not in str(refusal.raised())
    assert "ValueError" in str(refusal.raised())


def test_errors_of_this_package_come_back_with_their_message():
    refusal = load(recipe(), 0, [{"v": np.ones(3)}])
    assert isinstance(refusal.raised(), UnsupportedTable)
    assert "no column 'u'" in str(refusal.raised())


def test_a_refused_block_answers_with_its_refusal():
    refusal = Refusal("ValueError")
    assert facts_of(refusal) is refusal
    assert evaluate(refusal, b"", None, b"", "") is refusal
    assert Answering(refusal).answer(b"", None, b"", "") is refusal


def test_a_process_of_other_versions_makes_no_block():
    refusal = load(recipe(versions={"numpy": "0.1"}), 0, [{"u": np.ones(3)}])
    assert "other versions than the client" in refusal.message


def test_whole_numbers_among_objects_belong_to_the_block_of_whole_numbers():
    """A unit whose rows come in pieces of two types would be in two blocks otherwise, and clipped twice."""
    units = np.arange(50)
    assert np.array_equal(block_numbers("person", units.astype(object), 7), block_numbers("person", units, 7))
    with pytest.raises(UnsupportedTable, match=r"whole numbers below 2\*\*63"):
        block_numbers("person", np.array([2**63, 1], dtype=object), 7)


@pytest.mark.parametrize("units", [np.arange(1000), np.array([f"person {k}" for k in range(1000)])])
def test_a_unit_belongs_to_one_block_wherever_its_rows_are(units):
    numbers = block_numbers("person", units, 7)
    order = np.random.default_rng(0).permutation(1000)
    assert np.array_equal(block_numbers("person", units[order], 7), numbers[order])
    assert np.bincount(numbers, minlength=7).min() > 80
    narrow = units.astype(np.int16) if units.dtype.kind == "i" else units.astype(object)
    assert np.array_equal(block_numbers("person", narrow, 7), numbers)


def test_nothing_shows_in_a_repr():
    for each in (recipe(), Facts(12345, 12345, b"d"), Answering(Refusal("ValueError"))):
        assert "12345" not in repr(each)
        assert "ssss" not in repr(each)


def test_versions_that_are_compared_name_pandas_whose_hash_moves_units():
    assert {"pandas", "numpy", "numba", "pytensor"} <= probe.versions().keys()


def test_tasks_that_follow_a_lost_actor_have_likelihoods_of_their_own():
    """An actor that still works, and a task beside it, would share what a likelihood remembers."""

    def lost(*_args, **_options):
        raise OSError("the worker is gone")

    connection = _Connection(SimpleNamespace(nthreads=lambda: {"worker": 1}, submit=lost), [object()])
    before = connection.name
    assert connection.answers_of_actors({0: (b"", None, b"")}, deadline=1.0) is None
    assert connection.name != before
