# shellcheck shell=bash disable=SC2034  # its variables are for the scripts that source it
# Finds a Python, and makes or reuses a virtual environment. Sourced by the other scripts, not run.
#
#   use_environment [MINDSPORE_VERSION]
#
# sets `environment_python` to the interpreter of an environment of this repository that holds that MindSpore,
# this package (editable) and what its tests and drawings need. PYTHON=... in the environment names the Python to use.
# Whatever makes that impossible ends the script with one line on stderr and exit code 2.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
known_mindspore="2.10.0 2.9.0" # the first that suits the Python is the default
needed_gigabytes=5             # 2.9 GB installed, and the wheel of 0.8 GB twice: pip's download and its cache

fail() {
    printf '%s\n' "$(basename "$0"): $*" >&2
    exit 2
}

# MindSpore's wheels on PyPI: 2.9.0 for Python 3.9 to 3.12, 2.10.0 for 3.10 to 3.12.
oldest_python_minor() {
    case $1 in
    2.9.0) echo 9 ;;
    *) echo 10 ;;
    esac
}

# Prints the minor version of a suited Python; otherwise prints what is wrong with it and returns 1.
# It is run, not looked up: a version manager's shim exists on the PATH even where it starts nothing.
examine_python() {
    local candidate=$1 oldest_minor=$2 report version venv major minor
    report=$("$candidate" -c 'if True:
        import sys
        print("%d %d" % sys.version_info[:2])
        import ensurepip, venv
        print("venv")' 2>/dev/null </dev/null)
    { read -r version; read -r venv; } <<<"$report"
    if [ -z "$version" ]; then
        echo "$candidate does not run"
        return 1
    fi
    major=${version% *} minor=${version#* }
    if [ "$major" != 3 ] || [ "$minor" -lt "$oldest_minor" ] || [ "$minor" -gt 12 ]; then
        echo "$candidate is Python $major.$minor, not 3.$oldest_minor to 3.12"
        return 1
    fi
    if [ "$venv" != venv ]; then # Debian and Ubuntu package it apart
        echo "$candidate has no venv and ensurepip modules (Debian, Ubuntu: apt-get install python3.$minor-venv)"
        return 1
    fi
    echo "$minor"
}

# Sets `python` and `python_minor`.
choose_python() {
    local oldest_minor=$1 candidate answer reasons=""
    if [ -n "${PYTHON:-}" ]; then
        answer=$(examine_python "$PYTHON" "$oldest_minor") || fail "$answer; set PYTHON to another Python"
        python=$PYTHON python_minor=$answer
        return
    fi
    for candidate in python3.11 python3.10 python3.12 python3.9 python3; do
        command -v "$candidate" >/dev/null || continue
        if answer=$(examine_python "$candidate" "$oldest_minor"); then
            python=$candidate python_minor=$answer
            return
        fi
        reasons="$reasons; $answer"
    done
    fail "no suited Python${reasons:-; there is none on the PATH}. Install Python 3.11 with venv, or set PYTHON=/path/to/python3"
}

# Sets `mindspore_version`, `python` and `python_minor`.
choose_versions() {
    local version
    if [ -n "${1:-}" ]; then
        case " $known_mindspore " in
        *" $1 "*) ;;
        *) fail "MindSpore $1 is not one this package is tested with; choose one of: $known_mindspore" ;;
        esac
        mindspore_version=$1
        choose_python "$(oldest_python_minor "$1")"
        return
    fi
    choose_python 9
    for version in $known_mindspore; do
        mindspore_version=$version
        [ "$python_minor" -lt "$(oldest_python_minor "$version")" ] || return 0
    done
}

# What the environment was made from. The path counts because an editable installation points to it.
wanted_stamp() {
    printf 'mindspore %s\npython 3.%s\nrepository %s\nsetup.py %s\n' \
        "$mindspore_version" "$python_minor" "$repository" "$(cksum <"$repository/setup.py")"
}

is_ready() {
    [ "$(cat "$environment/ready" 2>/dev/null)" = "$(wanted_stamp)" ] && "$environment/bin/python" -c '' 2>/dev/null
}

free_gigabytes() {
    df -Pk "$1" | awk 'NR == 2 { print int($4 / 1024 / 1024) }'
}

# One line for what pip, or the first import, wrote to the log.
explain_failure() {
    local log=$1
    if grep -q -i 'no space left on device' "$log"; then
        fail "the disk is full; free $needed_gigabytes GB and run this again (log: $log)"
    elif grep -q 'No matching distribution found' "$log"; then
        fail "pip found no $(sed -n 's/.*No matching distribution found for \([^ ]*\).*/\1/p' "$log" | tail -n 1)" \
            "for this Python and machine; check the network, or set PIP_INDEX_URL to a mirror of PyPI (log: $log)"
    fi
    fail "the environment could not be made: $(grep -i -E 'error|cancel' "$log" | tail -n 1) (log: $log)"
}

make_environment() {
    local free log="$environment.log" scratch="$environment.tmp"
    free=$(free_gigabytes "$repository/.venv")
    [ "$free" -ge "$needed_gigabytes" ] ||
        fail "$free GB free on the disk of $repository, $needed_gigabytes GB are needed; free some and run this again"
    echo "Making $environment (once; downloads about 1 GB; log: $environment.log)" >&2
    # Without a stamp, or with another one, nothing is known about what is there.
    rm -rf "$environment" "$scratch"
    mkdir -p "$scratch"
    # TMPDIR: pip unpacks the big wheel there, and /tmp is often a small disk in memory.
    # PIP_USER: a user's configuration may ask for installation into the home directory, which fails in an environment.
    {
        "$python" -m venv "$environment" &&
            TMPDIR=$scratch PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 "$environment/bin/python" -m pip install \
                --no-input -e "${repository}[test,viz]" "mindspore==$mindspore_version" &&
            (cd "$scratch" && "$environment/bin/python" -c 'import mindspore')
    } >"$log" 2>&1 </dev/null || explain_failure "$log"
    rm -rf "$scratch"
    wanted_stamp >"$environment/ready" # last, so that an interrupted run leaves no stamp
}

use_environment() {
    choose_versions "${1:-}"
    environment=$repository/.venv/mindspore-$mindspore_version-py3.$python_minor
    environment_python=$environment/bin/python
    is_ready && return
    mkdir -p "$repository/.venv" 2>/dev/null && [ -w "$repository/.venv" ] ||
        fail "cannot write to $repository/.venv; copy the repository to a folder of yours"
    # One run makes it, others wait for it. The lock ends with the subshell: the job itself does not hold it.
    (
        if command -v flock >/dev/null; then
            flock -n 9 || { echo "Waiting for another run that makes $environment" >&2; flock 9; }
        fi
        is_ready || make_environment
    ) 9>"$environment.lock" || exit $?
}
