#!/usr/bin/env bash
# Runs the SQL contract tier (pg_regress) or the isolation tier (pg_isolation_regress) on a private cluster without a
# broker, and then reads the server's log: a warning or error of one of our workers, or any crash, fails the tier.
#
#   scripts/test-sql.sh sql|isolation [TEST ...]     without names: all of them
#
# Real output is left in target/test-sql/results (or test-isolation/results), differences in regression.diffs beside it.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

tier=$1
shift
find_pg
BIN=$("$PG_CONFIG" --bindir)
tools=$(dirname "$("$PG_CONFIG" --pgxs)")/../test
output=$TARGET/test-$tier
rm -rf "${output:?}"
mkdir -p "$output"

case $tier in
    sql)
        runner=$tools/regress/pg_regress
        input=$ROOT/tests/sql folder=sql suffix=.sql extra=()
        ;;
    isolation)
        runner=$tools/isolation/pg_isolation_regress
        input=$ROOT/tests/isolation folder=specs suffix=.spec extra=(--load-extension=outbox_ext)
        ;;
    *) die "unknown tier: $tier" ;;
esac
[ -x "$runner" ] || die "$runner does not exist" "it comes with postgresql-server-dev-$PG_SUPPORTED: run: make setup"
"$ROOT/scripts/install.sh"

names=("$@")
if [ ${#names[@]} = 0 ]; then
    for file in "$input/$folder"/*"$suffix"; do names+=("$(basename "$file" "$suffix")"); done
fi

# The tools stop at a test without an expected file; an empty one lets it run, fail and show its output.
mkdir -p "$output/input"
cp -r "$input/$folder" "$input/expected" "$output/input/"
for name in "${names[@]}"; do
    [ -e "$output/input/expected/$name.out" ] || : >"$output/input/expected/$name.out"
done

pg_dir=$(pg_folder "test-$tier-cluster")
find "$pg_dir" -mindepth 1 -delete
port=$(free_port 25500 25999)
settings=(max_worker_processes=32 max_prepared_transactions=10)
# Settings that only one tier needs are beside its tests.
if [ -f "$input/postgresql.conf" ]; then
    while IFS= read -r setting; do settings+=("$setting"); done < <(grep -vE '^(#|$)' "$input/postgresql.conf")
fi
"$ROOT/scripts/cluster" create "$pg_dir" "${settings[@]}"
# shellcheck disable=SC2064
trap "'$ROOT/scripts/cluster' stop '$pg_dir' immediate" EXIT
"$ROOT/scripts/cluster" start "$pg_dir" "$port"

rc=0
# Roles and databases are the cluster's, so the tests run one after the other; each has its own database.
"$runner" --inputdir="$output/input" --outputdir="$output" --bindir="$BIN" \
    "${extra[@]}" --host="$pg_dir" --port="$port" --user=postgres --dbname="outbox_$tier" "${names[@]}" || rc=$?
if [ -s "$output/regression.diffs" ]; then head -n 400 "$output/regression.diffs"; fi

"$ROOT/scripts/cluster" stop "$pg_dir" fast
trap - EXIT

# Lines of client sessions are what the tests provoke and compare. Crashes count wherever they come from.
# A test that makes a worker complain on purpose lists the line, as a regular expression, in log-expected.
cp "$pg_dir/server.log" "$output/server.log"
expected=$input/log-expected
suspicious=$(grep -nE '(WARNING|ERROR|FATAL|PANIC):  |panicked at|was terminated by signal' "$output/server.log" |
    grep -vE '\] client backend [^:]*: (WARNING|ERROR|FATAL):  ' |
    grep -vE -f <(grep -vE '^(#|$)' "$expected" 2>/dev/null || echo '^$') || true)
if [ -z "$suspicious" ]; then
    echo "ok - server log of the $tier tier"
else
    echo "not ok - server log of the $tier tier ($output/server.log):"
    printf '%s\n' "$suspicious" | head -n 20 | sed 's/^/    /'
    rc=1
fi
exit $rc
