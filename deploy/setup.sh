#!/bin/bash
# Gets what the test command and the demo need: Debian packages and the Rust toolchain. To be sourced, from the top
# directory. Each function returns when the thing is there, or says what is missing and how to get it, and exits 1.

. deploy/steps.sh

RUST_VERSION=1.95.0
# What a build with mount and MPI needs, and what a simulated cluster runs on. For those who source this.
# shellcheck disable=SC2034
BASE_PACKAGES=(ca-certificates curl fuse3 gcc git iproute2 libc6-dev libclang-dev libopenmpi-dev
    openmpi-bin pkg-config procps util-linux)
# What packages are made with.
# shellcheck disable=SC2034
PACKAGE_PACKAGES=(binutils dpkg-dev rpm)

cannot() {
    printf '%s\n' "cannot go on: $1" "hint: $2" >&2
    exit 1
}

# need_machine: root, /dev/fuse, namespaces.
need_machine() {
    [ "$(id -u)" = 0 ] || cannot "root is needed for namespaces and mounts" "run it with sudo, or as root"
    [ -c /dev/fuse ] || modprobe fuse 2>/dev/null || true
    [ -c /dev/fuse ] || cannot "/dev/fuse is missing" "load the module fuse; in a container: --device /dev/fuse"
    timeout -k 2 10 unshare --mount --uts --ipc --net --pid --fork true 2>/dev/null ||
        cannot "namespaces cannot be made here" "use a machine or VM; in a container: --privileged"
}

# need_packages NAME...: installs those that are missing.
need_packages() {
    local missing=() name
    command -v dpkg-query >/dev/null || cannot "this is not Debian" "install by other means: $*"
    for name; do
        dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # What an interrupted installation left half-way comes first. Without a terminal of its own dpkg can be ended, too.
    { step timeout -k 5 300 dpkg --configure -a && step timeout -k 5 300 apt-get -qq update &&
        step timeout -k 5 900 apt-get -qq install -y --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" \
            >/dev/null; } ||
        cannot "packages could not be installed" "apt-get install ${missing[*]}"
}

# need_toolchain: puts cargo and rustc of the pinned version into PATH, clippy and rustfmt with them.
need_toolchain() {
    local own="$PWD/target/rustup" parts=(--profile minimal -c clippy -c rustfmt)
    export PATH="$PATH:$HOME/.cargo/bin"
    if [ -x "$own/use/bin/cargo" ]; then
        export PATH="$own/use/bin:$PATH"
    elif command -v rustup >/dev/null; then
        export RUSTUP_TOOLCHAIN=$RUST_VERSION
        step has_toolchain || step timeout -k 5 900 rustup -q toolchain install "$RUST_VERSION" "${parts[@]}" || true
    elif ! step has_toolchain; then
        fetch_toolchain "$own" "${parts[@]}" || true
        export PATH="$own/use/bin:$PATH"
    fi
    step has_toolchain || cannot "Rust $RUST_VERSION with clippy and rustfmt is missing" \
        "install rustup (https://rustup.rs), then: rustup toolchain install $RUST_VERSION ${parts[*]}"
}

has_toolchain() {
    [[ $(rustc --version 2>/dev/null) = "rustc $RUST_VERSION "* ]] && cargo clippy --version >/dev/null 2>&1 &&
        cargo fmt --version >/dev/null 2>&1
}

# fetch_toolchain DIR PARTS...: from Rust's own server into the build directory; nothing else of the machine changes.
fetch_toolchain() {
    local dir=$1 from sum
    from="https://static.rust-lang.org/rustup/dist/$(uname -m)-unknown-linux-gnu/rustup-init"
    shift
    echo "fetching Rust $RUST_VERSION into $dir"
    rm -rf "$dir" && mkdir -p "$dir" && step curl -fsSL -m 300 -o "$dir/rustup-init" "$from" &&
        step curl -fsSL -m 60 -o "$dir/sum" "$from.sha256" && sum=$(cat "$dir/sum") || return 1
    echo "${sum%% *}  $dir/rustup-init" | sha256sum -c --quiet && chmod +x "$dir/rustup-init" || return 1
    RUSTUP_HOME=$dir CARGO_HOME=$dir/cargo step timeout -k 5 900 "$dir/rustup-init" -q -y --no-modify-path \
        --default-toolchain "$RUST_VERSION" "$@" >/dev/null 2>&1 && ln -sfn "$dir/toolchains/$RUST_VERSION"-* "$dir/use"
}
