#!/bin/bash
# What tests/run is made of. To be sourced after deploy/setup.sh, from the top directory.

# cargo-deny, and those that are run on the mount.
TOOLS=(cargo-deny@0.20.2 fsx@0.3.2 pjdfstest@0.2.2)

say() {
    printf '[%3d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"
}

fail() {
    say "FAILED: $1" >&2
    exit 1
}

# check NAME COMMAND...
check() {
    say "$1"
    step "${@:2}" || fail "$1"
}

# end NAME: of what was begun before.
end() {
    say "$1, begun before"
    finish "$1" || fail "$1"
}

# Programs of the registry, kept in the build directory.
tools() {
    local missing=() tool
    for tool in "${TOOLS[@]}"; do
        cargo install --list --root target/tools 2>/dev/null | grep -qxF "${tool/@/ v}:" || missing+=("$tool")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "installing ${missing[*]} (once)"
    CARGO_PROFILE_DEV_DEBUG=0 cargo install -q "${missing[@]}" --locked --debug --root target/tools \
        --target-dir target/tools/build
    rm -rf target/tools/build
}

# alone COMMAND...: in a PID namespace, with which daemons end that a test that was killed could not end.
alone() {
    unshare --pid --fork --kill-child --mount-proc "$@"
}

# timed COMMAND...: with which cargo runs test programs.
timed() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)
    export "CARGO_TARGET_${host}_RUNNER=$PWD/tests/timed" "TIMES=$PWD/target/times"
    "$@"
}
