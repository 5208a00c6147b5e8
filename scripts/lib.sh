# shellcheck shell=bash
# What the scripts share: where things are, how to speak to the person, who runs PostgreSQL.
# Sourced by them (`. "$(dirname "$0")/lib.sh"`); does nothing by itself.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
case $TARGET in /*) ;; *) TARGET=$ROOT/$TARGET ;; esac
# rustup asks for a new shell before its cargo is in the PATH; this spares that step.
[ ! -d "$HOME/.cargo/bin" ] || PATH=$PATH:$HOME/.cargo/bin
export CARGO_TERM_PROGRESS_WHEN=${CARGO_TERM_PROGRESS_WHEN:-never}

# Messages go to stderr, so that stdout holds only what a caller may want to read.
say() { printf '%s\n' "$*" >&2; }
die() {
    say "error: $1"
    shift
    local line
    for line in "$@"; do say "  $line"; done
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" = 0 ]; }

# with_progress LABEL LOG COMMAND...: runs the command with its output in LOG, and shows the elapsed seconds. When
# it fails, the end of LOG is shown. On a terminal the line counts up; elsewhere it says something twice a minute.
with_progress() {
    local label=$1 log=$2 began=$SECONDS pid rc=0 shown=0 elapsed
    shift 2
    mkdir -p "$(dirname "$log")"
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    [ -t 2 ] || say "  $label ..."
    while kill -0 "$pid" 2>/dev/null; do
        elapsed=$((SECONDS - began))
        if [ -t 2 ]; then
            printf '\r  %s ... %ds ' "$label" "$elapsed" >&2
        elif [ $((elapsed / 30)) -gt "$shown" ]; then
            shown=$((elapsed / 30))
            say "  $label ... ${elapsed}s: $(tail -n 1 "$log" | cut -c 1-80)"
        fi
        sleep 0.2
    done
    wait "$pid" || rc=$?
    if [ -t 2 ]; then printf '\r' >&2; fi
    if [ "$rc" = 0 ]; then
        say "  $label: done in $((SECONDS - began))s"
    else
        say "  $label: FAILED after $((SECONDS - began))s (exit $rc); the end of $log:"
        tail -n 40 "$log" >&2
    fi
    return "$rc"
}

# fetch_jars DIR POM WHAT: the jars that POM names, in DIR. Fetched beside it and then renamed, under a lock: two callers
# at once get one complete folder.
fetch_jars() {
    local dir=$1 pom=$2 what=$3
    [ -d "$dir" ] && return 0
    have java || die "java not found" "run: make setup"
    have mvn || die "mvn not found" "run: make setup"
    mkdir -p "$TARGET"
    (
        flock 9
        [ -d "$dir" ] && exit 0
        rm -rf "$dir.new"
        with_progress "fetching $what from Maven Central" "$TARGET/logs/${dir##*/}.log" \
            mvn -q -B -Dstyle.color=never -f "$pom" dependency:copy-dependencies \
            -DincludeScope=runtime -DoutputDirectory="$dir.new" 9>&-
        mv "$dir.new" "$dir"
    ) 9>"$dir.lock"
    [ -d "$dir" ] || die "could not fetch $what"
}

# Whether something listens on a TCP port of the loopback.
port_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_port FIRST LAST: a port of that range on which nothing listens. Starts at a random one, so that two callers at
# the same moment seldom choose the same. Ranges lie below 32768, where the kernel takes client ports from.
free_port() {
    local first=$1 count=$(($2 - $1 + 1)) start port i
    start=$((RANDOM % count))
    for ((i = 0; i < count; i++)); do
        port=$((first + (start + i) % count))
        if ! port_taken "$port"; then
            echo "$port"
            return 0
        fi
    done
    die "no free port between $first and $2"
}

# pg_config: $PG_CONFIG if set; else the one in the PATH if it is of a supported version; else Debian's own folder.
# Sets PG_CONFIG and PG_MAJOR.
PG_SUPPORTED=15
find_pg() {
    local found
    if [ -z "${PG_CONFIG:-}" ]; then
        PG_CONFIG=$(command -v pg_config || true)
        found=/usr/lib/postgresql/$PG_SUPPORTED/bin/pg_config
        if [ -x "$found" ] && ! { [ -n "$PG_CONFIG" ] && [ "$(pg_major "$PG_CONFIG")" = "$PG_SUPPORTED" ]; }; then
            PG_CONFIG=$found
        fi
    fi
    [ -n "$PG_CONFIG" ] || die "pg_config not found" "run: make setup" "or name it: make PG_CONFIG=/path/to/pg_config ..."
    PG_CONFIG=$(command -v "$PG_CONFIG") || die "pg_config not found: $PG_CONFIG"
    PG_MAJOR=$(pg_major "$PG_CONFIG")
    [ "$PG_MAJOR" = "$PG_SUPPORTED" ] || die \
        "PostgreSQL $PG_MAJOR is not supported; this version of outbox_ext is for PostgreSQL $PG_SUPPORTED" \
        "$PG_CONFIG says: $("$PG_CONFIG" --version)" \
        "name another one: make PG_CONFIG=/path/to/pg_config ..."
    export PG_CONFIG
}
pg_major() { "$1" --version | sed -E 's/^[^0-9]*([0-9]+).*/\1/'; }

# The PostgreSQL server refuses to run as root: root runs it as the user `postgres`, anybody else as themselves.
as_pg() {
    if is_root; then
        runuser -u postgres -- "$@"
    else
        "$@"
    fi
}

# A folder of ours that the server's user can reach and whose path is short enough for a socket (107 bytes): under
# target/ where that holds, else in /var/tmp. pg_folder NAME prints it; it exists afterwards and belongs to that user.
pg_folder() {
    local name=$1 dir=$TARGET/$1
    mkdir -p "$dir"
    if is_root; then chown postgres: "$dir"; fi
    if [ ${#dir} -gt 80 ] || ! as_pg test -w "$dir" -a -x "$dir"; then
        dir=/var/tmp/outbox_ext-$(id -u)-$(printf '%s' "$TARGET" | cksum | cut -d' ' -f1)-${name//\//-}
        mkdir -p "$dir"
        if is_root; then chown postgres: "$dir"; fi
        [ -O "$dir" ] || is_root || die "$dir belongs to somebody else"
        say "  note: PostgreSQL's files are in $dir (its user cannot use $TARGET/$name)"
    fi
    chmod 700 "$dir"
    echo "$dir"
}
