"""Mutants have to fit the package: whether they are convicted, `python tools/mutants.py` finds out."""

import mutants
import pytest


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: f"{mutant.sort}: {mutant.name}")
def test_the_text_of_a_mutant_stands_in_the_package_once_and_its_tests_are_there(mutant):
    assert mutants.where(mutant) == 1
    path = mutants.ROOT / "pymc_dp" / mutant.file
    compile(path.read_text().replace(mutant.old, mutant.new), path, "exec")
    assert mutant.tests
    for test in mutant.tests:
        file, name = test.split("::")
        assert f"def {name.split('[')[0]}(" in (mutants.ROOT / "tests" / file).read_text()


def test_no_two_mutants_have_one_name():
    assert len({(mutant.sort, mutant.name) for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) > 45
