#!/bin/bash
# Steps that can be interrupted. To be sourced. INT, TERM and HUP end the running step with all its processes, wait for
# them (test clusters are taken down on the way), remove temporary files, and exit with 128 + the signal.

# Everything that makes temporary files finds this directory; also what is killed in the middle leaves nothing outside.
TMPDIR=${TMPDIR:-/tmp}/scrfs-$$-$RANDOM
mkdir -m 1777 "$TMPDIR"
export TMPDIR

# end_steps: ends what was started and still runs, with all its processes.
end_steps() {
    local group end
    for group in $(jobs -p); do
        kill -TERM -- "-$group" 2>/dev/null || true
        # By the clock: on a loaded machine a hundred short sleeps take much longer than they say.
        end=$((SECONDS + 10))
        while kill -0 -- "-$group" 2>/dev/null && ((SECONDS < end)); do sleep 0.1; done
        kill -KILL -- "-$group" 2>/dev/null || true
    done
}

leave() {
    end_steps
    rm -rf --one-file-system "$TMPDIR" || true
}
trap leave EXIT

stop() {
    # Whoever reads our messages may be gone, too.
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

# beside LOG COMMAND...: starts a step that goes on beside the next ones, and writes to LOG; `wait "$!"` gives its exit
# code.
beside() {
    set -m
    "${@:2}" </dev/null >"$1" 2>&1 &
    set +m
}

# say WORDS: with the time since the beginning.
say() {
    printf '[%3d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"
}

# check NAME COMMAND...: a step that has to end well.
check() {
    say "$1"
    step "${@:2}" || { say "FAILED: $1" >&2; exit 1; }
}

# joined NAME PID LOG: what was started beside the others has to end well.
joined() {
    say "$1"
    wait "$2" || { cat "$3" >&2; say "FAILED: $1" >&2; exit 1; }
}
