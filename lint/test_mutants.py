"""Mutants have to fit the package: whether they are convicted, `python tools/mutants.py` finds out."""

from collections import Counter

from mutants_table import MUTANTS, ROOT, where


def test_the_text_of_a_mutant_stands_in_the_package_once():
    wrong = [
        f"{mutant.sort}: {mutant.name}: {where(mutant)} times in {mutant.file}"
        for mutant in MUTANTS
        if where(mutant) != 1
    ]
    assert not wrong, "\n".join(wrong)


def test_a_mutant_can_be_compiled():
    wrong = []
    for mutant in MUTANTS:
        path = ROOT / "pymc_dp" / mutant.file
        try:
            compile(path.read_text().replace(mutant.old, mutant.new), path, "exec")
        except (OSError, SyntaxError) as error:
            wrong.append(f"{mutant.sort}: {mutant.name}: {error}")
    assert not wrong, "\n".join(wrong)


def test_a_mutant_has_tests_and_they_are_there():
    wrong = [f"{mutant.sort}: {mutant.name}: no tests" for mutant in MUTANTS if not mutant.tests]
    for mutant in MUTANTS:
        for test in mutant.tests:
            file, name = test.split("::")
            path = ROOT / "tests" / file
            if not path.is_file() or f"def {name.split('[')[0]}(" not in path.read_text():
                wrong.append(f"{mutant.sort}: {mutant.name}: there is no {test}")
    assert not wrong, "\n".join(wrong)


def test_no_two_mutants_have_one_name():
    assert len(MUTANTS) > 45
    times = Counter(f"{mutant.sort}: {mutant.name}" for mutant in MUTANTS)
    wrong = [mutant for mutant in times if times[mutant] > 1]
    assert not wrong, "\n".join(wrong)
