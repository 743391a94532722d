#!/usr/bin/env bash
# From nothing but Python 3.9 to 3.12 to a trained model: makes an environment in the repository (the first time) and
# runs the first example with the arguments given here. PYTHON=/path/to/python3 chooses the Python.
set -euo pipefail

# shellcheck source=scripts/environment.sh
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

use_environment
exec "$environment_python" "$repository/examples/01_train_language_model.py" "$@"
