#!/usr/bin/env bash
# Every attack at full size, and all pages and notebooks, one after the other, whatever earlier ones find; ends with 1 if
# any found something.
#
#     bash tools/nightly.sh                # all: takes hours
#     bash tools/nightly.sh replay faults  # some
#
# Sizes may be set: PAIRS=100 RUNS=1000 MODELS=50 MUTANTS="noise seed" KILLS=5 CASES=200 bash tools/nightly.sh
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

KILLS=${KILLS:-100}
CASES=${CASES:-9000}
declare -A COMMANDS=(
  [replay]="attack.py replay --pairs ${PAIRS:-3000}"
  [audit]="attack.py audit --runs ${RUNS:-10000}"
  [models]="models.py ${MODELS:-5000}"
  [mutants]="mutants.py ${MUTANTS:-}"
  [faults]="faults.py --kills $KILLS --races $((10 * KILLS)) --interrupts $KILLS --damages $((10 * KILLS))"
  [tests]="-m pytest -m nightly"
  [site]="-m sphinx -W --keep-going -q -b html docs docs/_build/html"
  [notebooks]="-m jupyter execute notebooks/tutorial.ipynb notebooks/samplers.ipynb"
  [fuzz]="fuzz.py --arguments $CASES --options $((CASES / 30)) --tables $((CASES * 7 / 90))"
)
[ $# -gt 0 ] || set -- tests site notebooks replay models mutants audit faults fuzz

for attack in "$@"; do
  if [ -z "${COMMANDS[$attack]:-}" ]; then
    echo "There is no attack '$attack', only: ${!COMMANDS[*]}" >&2
    exit 2
  fi
done
found=()
for attack in "$@"; do
  command=${COMMANDS[$attack]}
  [[ $command == -m* ]] || command=tools/$command
  printf '\n## %s: python %s\n\n' "$attack" "$command"
  begin=$SECONDS
  # shellcheck disable=SC2086  # words of a command
  python -m uv run python $command || found+=("$attack")
  printf '\n%s: %d s\n' "$attack" "$((SECONDS - begin))"
done
if [ ${#found[@]} -gt 0 ]; then
  printf '\nFOUND SOMETHING, or failed: %s\n' "${found[*]}"
  exit 1
fi
printf '\nNothing was found.\n'
