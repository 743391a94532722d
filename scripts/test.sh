#!/usr/bin/env bash
# Runs the tests against one MindSpore version, in an environment of its own.
#
#   scripts/test.sh [MINDSPORE_VERSION] [--engine | --graph] [pytest arguments...]
#
# MINDSPORE_VERSION: 2.10.0 (default; 2.9.0 on Python 3.9) or 2.9.0.
# --engine: only the tests that depend on the MindSpore version.
# --graph: the tests of values once more, through the graph engine wherever it can compile.
# Paths among the pytest arguments (from the repository's root) are run instead of all tests.
set -euo pipefail

all_tests="tests st"
engine_tests="tests/engines/pynative tests/engines/graph/test_engine.py tests/engines/graph/test_effects.py tests/engines/graph/test_packing.py tests/memory tests/test_values*.py tests/test_section7*.py tests/test_grad_function.py tests/test_weight_groups.py tests/test_results.py"
# Of the random programs those are compiled for it whose seeds do not begin with 1, each once.
engine_selection="not (test_compiled_random_programs and seeds1) and not test_random_programs_in_short_runs"
# Files are shared out to as many processes as there are cores, four at most, in the order of tests/conftest.py.
parallel="-n auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder"
# Hooks, recompute and graphs of thousands of nodes always fall back; networks and random programs are compiled elsewhere.
graph_tests="tests/test_section7_arguments.py tests/test_section7_cells.py tests/test_section7_graphs.py tests/test_section7_inputs.py tests/test_section7_opaque.py tests/test_section7_sens.py"

# shellcheck source=scripts/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

version=""
case ${1:-} in
[0-9]* | v[0-9]*)
    version=$1
    shift
    ;;
esac

cd "$repository"
paths=$all_tests
pytest_arguments=()
for argument in "$@"; do
    if [ "$argument" = --engine ]; then
        paths=$engine_tests
        pytest_arguments+=(-k "$engine_selection")
        continue
    fi
    if [ "$argument" = --graph ]; then
        paths=$graph_tests
    fi
    pytest_arguments+=("$argument")
done
for argument in "$@"; do
    # path or path::test
    [ ! -e "${argument%%::*}" ] || paths="" parallel=""
done

use_environment "$version"
# $paths and $parallel are split, and patterns expanded, on purpose; the odd form of the array is for bash 3 and `set -u`.
# shellcheck disable=SC2086
exec "$environment_python" -m pytest $parallel $paths ${pytest_arguments[@]+"${pytest_arguments[@]}"}
