#!/usr/bin/env bash
# Installs what building, the demo and the tests need and this machine lacks: Debian packages, by apt, when root.
# Rust is never installed: its command is printed. Quick when nothing is missing.
#
#   scripts/setup.sh [build|run|bench|test]     how much is wanted (bench and test both include run, which includes build); default: test
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

purpose=${1:-test}
RUSTUP="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"

# A Rust that rustup has installed but that is not yet in this shell's PATH is good enough: lib.sh adds it.
check_rust() {
    have cargo || die "Rust is not installed" "it is the one thing you install yourself:" "    $RUSTUP"
    local wanted found
    wanted=$(sed -nE 's/^rust-version = "([0-9.]+)"/\1/p' "$ROOT/Cargo.toml")
    found=$(rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] ||
        die "Rust $found is too old; outbox_ext needs $wanted or newer" "    rustup update stable" "or, without rustup:" "    $RUSTUP"
    [ "$purpose" != test ] || { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 ||
        die "rustfmt or clippy is missing" "    rustup component add rustfmt clippy"
}

# need PACKAGE TEST...: notes the package if the test fails.
missing=()
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
pg_tool() { [ -n "${PG_CONFIG:-}" ] || [ -x "/usr/lib/postgresql/$PG_SUPPORTED/bin/$1" ]; }
header() { [ -e "/usr/include/$1" ] || [ -n "$(find /usr/include -maxdepth 2 -path "*/$1" -print -quit)" ]; }
libclang() { compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' || compgen -G '/usr/lib/*/libclang*.so*'; }
java_17() { [ "$(java -version 2>&1 | sed -nE '1s/.*"([0-9]+).*/\1/p')" -ge 17 ]; }

check_packages() {
    need "postgresql-server-dev-$PG_SUPPORTED" pg_tool pg_config
    need "postgresql-server-dev-$PG_SUPPORTED" test -n "${PG_CONFIG:-}" -o -e "/usr/include/postgresql/$PG_SUPPORTED/server/postgres.h"
    need gcc have gcc
    need g++ have g++
    need libc6-dev header stdio.h
    need make have make
    need clang have clang
    need libclang-dev libclang
    need pkg-config have pkg-config
    need libssl-dev header openssl/ssl.h
    need zlib1g-dev header zlib.h
    need perl have perl
    [ "$purpose" = build ] && return 0
    need "postgresql-$PG_SUPPORTED" pg_tool initdb
    need openjdk-17-jre-headless java_17
    need maven have mvn
    need procps have ps
    [ "$purpose" = run ] && return 0
    if [ "$purpose" = bench ]; then
        need valgrind have valgrind
        return 0
    fi
    need shellcheck have shellcheck
    need binutils have nm
    need openssl have openssl
}

install_packages() {
    [ ${#missing[@]} -gt 0 ] || return 0
    local packages
    mapfile -t packages < <(printf '%s\n' "${missing[@]}" | sort -u)
    have apt-get || die "missing on this machine: ${packages[*]}" \
        "These are Debian's names; install your system's counterparts. PostgreSQL elsewhere: make PG_CONFIG=/path/to/pg_config"
    local line="apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
    is_root || die "missing on this machine: ${packages[*]}" "run as root, then try again:" "    $line"
    export DEBIAN_FRONTEND=noninteractive
    say "installing ${packages[*]}"
    with_progress "apt-get update" "$TARGET/logs/apt-update.log" apt-get update
    with_progress "apt-get install" "$TARGET/logs/apt-install.log" \
        apt-get install -y --no-install-recommends "${packages[@]}"
}

check_rust
check_packages
install_packages
