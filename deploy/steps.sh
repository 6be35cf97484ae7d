#!/bin/bash
# Steps that can be interrupted. To be sourced. INT, TERM and HUP end the running step with all its processes, wait for
# them (test clusters are taken down on the way), remove temporary files, and exit with 128 + the signal.

# Everything that makes temporary files finds this directory; also what is killed in the middle leaves nothing outside.
TMPDIR=${TMPDIR:-/tmp}/scrfs-$$-$RANDOM
mkdir -m 1777 "$TMPDIR"
export TMPDIR

# Ends all steps that run; they have 10 s.
end_steps() {
    local groups group tries=100
    groups=$(jobs -p)
    for group in $groups; do kill -TERM -- "-$group" 2>/dev/null || true; done
    for group in $groups; do
        while kill -0 -- "-$group" 2>/dev/null && ((tries-- > 0)); do sleep 0.1; done
        kill -KILL -- "-$group" 2>/dev/null || true
    done
}

leave() {
    # Whoever reads our messages may be gone, too.
    trap '' INT TERM HUP PIPE
    end_steps
    rm -rf --one-file-system "$TMPDIR" || true
}
trap leave EXIT

stop() {
    trap '' INT TERM HUP PIPE
    echo "interrupted: clearing up" >&2 || true
    exit $((128 + $1))
}
trap 'stop 2' INT
trap 'stop 15' TERM
trap 'stop 1' HUP

# step COMMAND...: runs it in a process group of its own, so that all of it can be ended; gives its exit code.
step() {
    local code=0
    set -m
    "$@" </dev/null &
    set +m
    wait "$!" || code=$?
    return "$code"
}

# begin NAME COMMAND...: a step that runs beside others. What it says is kept for finish NAME.
declare -A beside=()
begin() {
    set -m
    (
        # Its steps end with it. (Who is given here calls it.)
        # shellcheck disable=SC2317
        step() { "$@"; }
        "${@:2}"
    ) </dev/null >"$TMPDIR/$1.out" 2>&1 &
    set +m
    beside[$1]=$!
}

# finish NAME: waits for a step that was begun; tells what it said, and gives its exit code.
finish() {
    local code=0
    wait "${beside[$1]}" || code=$?
    cat "$TMPDIR/$1.out"
    return "$code"
}
