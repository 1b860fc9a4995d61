#!/usr/bin/env bash
# isorate's front door: sets up .venv beside this file once, then hands over to Python.
#
#   ./run.sh [run] --schedule absolute    measure
#   ./run.sh test [pytest arguments]      run the tests
#   ./run.sh --help                       everything else goes to `python -m harness` as it stands
#
# ISORATE_PYTHON names the interpreter to build .venv with (3.11 or newer; default: the newest one on PATH).
set -euo pipefail

say() { printf 'isorate: %s\n' "$*" >&2; }
die() {
    local code=$1
    shift
    say "$*"
    exit "$code"
}

# Where this file really lies: links are followed by hand, since `readlink -f` and `realpath` are not everywhere.
self=${BASH_SOURCE[0]}
while [[ -L $self ]]; do
    link=$(readlink -- "$self")
    [[ $link == /* ]] || link=${self%/*}/$link
    self=$link
done
[[ $self == */* ]] || self=./$self
root=$(CDPATH='' cd -P -- "${self%/*}/" && pwd)

venv=$root/.venv
python=$venv/bin/python
lock=$root/requirements.lock
bare=$root/requirements-nodeps.lock # packages of which only the files are wanted, not what they depend on
stamp=$venv/isorate-stamp # written last: the interpreter and the whole lock file that .venv was made from
ours=$venv/isorate-made   # present: run.sh made this folder and may delete it
log=$venv/isorate-setup.log
holds_lock_dir=''

read_file() { # read_file VARIABLE FILE: without starting a process
    IFS= read -r -d '' "$1" 2>/dev/null <"$2" || true
}

read_locks() { # read_locks VARIABLE: the text of both lock files
    local with='' without=''
    read_file with "$lock"
    [[ ! -r $bare ]] || read_file without "$bare"
    printf -v "$1" '%s%s' "$with" "$without"
}

# True when .venv is what requirements.lock asks for. It starts no process: every run pays for it.
is_ready() {
    [[ -f $stamp && -x $python ]] || return 1
    local stamped wanted
    read_file stamped "$stamp"
    read_locks wanted
    [[ -n $wanted && ${stamped#*$'\n'} == "$wanted" ]] || return 1
    local base=${stamped%%$'\n'*} # "ISORATE_PYTHON as it was <tab> the interpreter behind .venv"
    [[ -z ${ISORATE_PYTHON:-} || ${base%%$'\t'*} == "$ISORATE_PYTHON" ]] || return 1
    [[ -x ${base#*$'\t'} ]]
}

interpreter_path() { # the file behind an interpreter's name, so that a replaced one (3.11 -> 3.12) is noticed
    "$1" -I -c 'import os, sys; print(os.path.realpath(sys.executable))'
}

# Prints the interpreter to build with, or says what is missing.
find_python() {
    local names=(python3.14 python3.13 python3.12 python3.11 python3 python) name version too_old='' no_venv=''
    if [[ -n ${ISORATE_PYTHON:-} ]]; then names=("$ISORATE_PYTHON"); fi
    for name in "${names[@]}"; do
        command -v -- "$name" >/dev/null 2>&1 || continue
        version=$("$name" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        if ! "$name" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            too_old=${too_old:-"$name is $version"}
        elif ! "$name" -I -c 'import venv, ensurepip' 2>/dev/null; then
            no_venv=${no_venv:-$version}
        else
            command -v -- "$name"
            return
        fi
    done
    if [[ -n $no_venv ]]; then
        die 2 "Python $no_venv cannot make virtual environments: install its venv module (Debian, Ubuntu:" \
            "apt install python$no_venv-venv) and start again"
    fi
    local found=${too_old:-"none found on PATH"}
    [[ -z ${ISORATE_PYTHON:-} || -n $too_old ]] || found="ISORATE_PYTHON=$ISORATE_PYTHON does not run"
    die 2 "needs Python 3.11 or newer ($found): install python3.11 with its venv module" \
        "(Debian, Ubuntu: apt install python3.11-venv) or set ISORATE_PYTHON to one"
}

# Holds the set-up lock until this process ends or calls unlock; a second first run waits here.
# The lock outlives a killed run.sh while its pip still runs, since pip inherits the descriptor.
take_lock() {
    local waiting="another run.sh is setting up $venv; waiting for it"
    if command -v flock >/dev/null 2>&1; then
        exec 9>>"$venv.lock"
        flock -n 9 || {
            say "$waiting"
            flock 9
        }
        return
    fi
    local said='' owner again
    until mkdir -- "$venv.lock.d" 2>/dev/null; do
        [[ -n $said ]] || say "$waiting"
        said=1
        read_file owner "$venv.lock.d/pid"
        if [[ -n $owner ]] && ! kill -0 "$owner" 2>/dev/null; then
            read_file again "$venv.lock.d/pid"
            # Not removed here: of two waiters that do so, the slower one would remove the faster one's new lock.
            [[ $owner != "$again" ]] || die 2 "a killed set-up left its lock behind: delete $venv.lock.d"
        fi
        sleep 0.2
    done
    holds_lock_dir=1
    printf '%s' "$$" >"$venv.lock.d/pid"
}

unlock() {
    exec 9>&-
    if [[ -n $holds_lock_dir ]]; then rm -rf -- "$venv.lock.d"; fi
    holds_lock_dir=''
}

failed() {
    say "set-up failed while $1; the end of $log:"
    tail -n 15 -- "$log" >&2 || true
    say "the next start tries again"
    exit 1
}

# While pip works: a line every 15 s, so that a download of gigabytes does not look like a hang. Reads a pipe that only
# run.sh holds open, and so ends with it, however that ends.
tick() {
    exec 9>&-
    local seconds=0 last code
    while code=0 && { read -r -t 15 || code=$?; } && [[ $code -gt 128 ]]; do
        seconds=$((seconds + 15))
        last=$(grep -E '^ *(Collecting|Downloading|Processing|Installing)' "$log" 2>/dev/null | tail -n 1) || true
        say "... $seconds s: ${last:0:90}"
    done
}

end_setup() {
    local code=$?
    exec 8>&-
    unlock
    if [[ $code -ge 128 ]]; then say "set-up interrupted; the next start does it again"; fi
}

# Makes .venv afresh, except where a complete one only has to follow a changed lock file, or where the folder is
# somebody else's virtual environment: those are brought up to date in place, which never loses anything.
make_venv() {
    local base=$1 keep=''
    if [[ -e $venv && ! -f $ours ]]; then
        [[ -f $venv/pyvenv.cfg ]] || die 2 "$venv is in the way: it is no virtual environment; move it away"
        "$python" -I -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
            die 2 "$venv is in the way: run.sh did not make it, and it has no pip or no Python >= 3.11; move it away"
        keep=1
    elif [[ -f $stamp ]]; then
        [[ $(interpreter_path "$python" 2>/dev/null) != "$base" ]] || keep=1
    fi
    if [[ -z $keep ]]; then
        rm -rf -- "$venv"
        mkdir -- "$venv"
        : >"$ours"
    fi
    rm -f -- "$stamp"
    : >"$log"
    [[ -n $keep ]] || "$base" -I -m venv "$venv" >>"$log" 2>&1 </dev/null || failed "making the virtual environment"
}

set_up() {
    [[ -r $lock ]] || die 2 "cannot read $lock"
    [[ -w $root ]] || die 2 "cannot write to $root, where .venv belongs"
    local found base text start=$SECONDS
    found=$(find_python) || exit
    base=$(interpreter_path "$found")
    trap end_setup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    take_lock
    if is_ready; then # the run that we waited for did it
        return
    fi
    read_locks text # as it is now: a change while pip runs must not be stamped as done
    say "setting up $venv with Python $("$base" -I -c 'import platform; print(platform.python_version())')" \
        "(once; log: $log)"
    make_venv "$base"
    say "installing $(grep -c '^[A-Za-z]' "$lock" || true) packages from requirements.lock"
    exec 8> >(tick)
    local ticker=$!
    # Compiled when first imported (--no-compile): most of what torch brings never is, and compiling all takes a minute.
    # A user's own pip settings that would install elsewhere must not apply here; indexes and caches do.
    env -u PIP_USER -u PIP_TARGET -u PIP_PREFIX -u PIP_REQUIRE_VIRTUALENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
        "$python" -I -m pip install --no-input --no-compile --progress-bar off -r "$lock" >>"$log" 2>&1 </dev/null 8>&- ||
        failed "installing the packages"
    if [[ -r $bare ]]; then
        env -u PIP_USER -u PIP_TARGET -u PIP_PREFIX -u PIP_REQUIRE_VIRTUALENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
            "$python" -I -m pip install --no-input --no-compile --progress-bar off --no-deps -r "$bare" \
            >>"$log" 2>&1 </dev/null 8>&- || failed "installing the packages without their dependencies"
    fi
    exec 8>&-
    wait "$ticker" || true
    # Relative to site-packages, so that a moved or copied checkout finds its own sources and not the old ones.
    "$python" -I - <<'PY' || failed "linking the sources into .venv"
import os, sysconfig
site = sysconfig.get_path("purelib")
with open(os.path.join(site, "isorate.pth"), "w", encoding="utf-8") as file:
    file.write("../../../..\n")
PY
    base=$(interpreter_path "$python") # an adopted .venv may have another one than was found
    printf '%s\t%s\n%s' "${ISORATE_PYTHON:-}" "$base" "$text" >"$stamp.new"
    mv -f -- "$stamp.new" "$stamp"
    say "ready after $((SECONDS - start)) s"
}

if ! is_ready; then
    set_up
    trap - EXIT INT TERM
    unlock
fi

# No module is ever taken from the folder one happens to stand in (a stray harness/ or random.py there), in this
# process or in its children: .venv's isorate.pth is what finds the packages.
export PYTHONSAFEPATH=1
export ISORATE_PROGRAM=$0 # so that the command a report prints to repeat a run can be typed
unset PYTHONHOME
if [[ ${1:-} == test ]]; then
    shift
    cd -- "$root"
    (($# == 0)) || exec "$python" -m pytest "$@"
    # All tests: first those that can share the cores, a worker a core; then the real runs, which cannot, one by one.
    code=0
    "$python" -m pytest -n logical --dist loadfile tests/models tests/test_imports.py tests/unit tests/property \
        tests/regress || code=$?
    "$python" -m pytest tests/integration tests/gpu || code=$?
    exit "$code"
fi
exec "$python" -m harness "$@"
