#!/usr/bin/env bash
# From nothing but Python 3.9 to 3.12 to a trained model: makes an environment in the repository (the first time) and
# runs the first example with the arguments given here; without arguments, and where there are two cores, the second
# example too. PYTHON=/path/to/python3 chooses the Python.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

use_environment
"$environment_python" "$repository/examples/01_train_language_model.py" "$@"

# The same model over two processes; with fewer cores than processes its times would mean nothing.
cores=$("$environment_python" -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)')
if [ "$#" -eq 0 ] && [ "$cores" -ge 2 ]; then
    pictures=$repository/.venv/quickstart
    mkdir -p "$pictures"
    printf '\nNow the same model as a pipeline of two processes\n'
    "$environment_python" "$repository/examples/02_train_in_a_pipeline.py" --pictures "$pictures"
fi
