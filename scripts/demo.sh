#!/usr/bin/env bash
# The demo: builds and installs the extension, runs a private PostgreSQL and a private Kafka under target/demo, tells a
# short story on them and leaves both running.
#
#   scripts/demo.sh          all of that; a second run uses what is there
#   scripts/demo.sh env      shell lines to play on with psql and Kafka's tools
#   scripts/demo.sh down     stop both; their data stays
#   scripts/demo.sh remove   stop both and remove their data
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

DEMO=$TARGET/demo
STATE=$DEMO/env
DATABASE=shop

# The state file holds what the last run chose: PG_DIR, PG_PORT, KAFKA_PORT.
load_state() {
    [ -f "$STATE" ] || return 1
    # shellcheck source=/dev/null
    . "$STATE"
}

environment() {
    if ! load_state || ! "$ROOT/scripts/kafka" status "$DEMO/kafka" 2>/dev/null || ! "$ROOT/scripts/cluster" running "$PG_DIR"; then
        die "the demo is not running" "run: make demo"
    fi
    printf 'export %s\n' "PGHOST='$PG_DIR'" "PGPORT=$PG_PORT" "PGUSER=postgres" "PGDATABASE=$DATABASE" \
        "OUTBOX_BROKERS=127.0.0.1:$KAFKA_PORT"
}

down() {
    load_state || return 0
    "$ROOT/scripts/cluster" stop "$PG_DIR"
    "$ROOT/scripts/kafka" stop "$DEMO/kafka"
    say "  the demo's PostgreSQL and Kafka are stopped"
}

remove() {
    load_state || return 0
    down
    rm -rf "$PG_DIR" "$DEMO"
}

psql_demo() { "$BIN/psql" -X -q -v ON_ERROR_STOP=1 -h "$PG_DIR" -p "$PG_PORT" -U postgres -d "${DB:-$DATABASE}" "$@"; }

start_kafka() {
    if ! "$ROOT/scripts/kafka" status "$DEMO/kafka" 2>/dev/null; then
        "$ROOT/scripts/kafka" jars
        if port_taken "$KAFKA_PORT"; then KAFKA_PORT=$(free_port 29000 29999); fi
        with_progress "starting Apache Kafka on 127.0.0.1:$KAFKA_PORT" "$TARGET/logs/demo-kafka.log" \
            "$ROOT/scripts/kafka" start "$DEMO/kafka" "$KAFKA_PORT"
    else
        say "  Apache Kafka runs on 127.0.0.1:$KAFKA_PORT"
    fi
}

# A server that runs an older build is restarted; a database made by an older install script is made anew.
start_postgres() {
    local build schema
    build=$(cksum <"$TARGET/release/liboutbox_ext.so")
    schema=$(cat "$ROOT"/sql/outbox_ext--*.sql | cksum)
    [ -d "$PG_DIR/data" ] || "$ROOT/scripts/cluster" create "$PG_DIR" max_prepared_transactions=10
    if "$ROOT/scripts/cluster" running "$PG_DIR" && [ "$(cat "$DEMO/build" 2>/dev/null)" != "$build" ]; then
        "$ROOT/scripts/cluster" stop "$PG_DIR"
    fi
    if ! "$ROOT/scripts/cluster" running "$PG_DIR"; then
        if [ -e "$PG_DIR/.s.PGSQL.$PG_PORT" ] || port_taken "$PG_PORT"; then PG_PORT=$(free_port 25400 25499); fi
        with_progress "starting PostgreSQL $PG_MAJOR in $PG_DIR" "$TARGET/logs/demo-postgres.log" \
            "$ROOT/scripts/cluster" start "$PG_DIR" "$PG_PORT"
    else
        say "  PostgreSQL runs in $PG_DIR"
    fi
    echo "$build" >"$DEMO/build"
    if [ "$(cat "$DEMO/schema" 2>/dev/null)" != "$schema" ]; then
        DB=postgres psql_demo -c "DROP DATABASE IF EXISTS $DATABASE WITH (FORCE)" 2>/dev/null
    fi
    echo "$schema" >"$DEMO/schema"
    if [ -z "$(DB=postgres psql_demo -At -c "SELECT 1 FROM pg_database WHERE datname = '$DATABASE'")" ]; then
        DB=postgres psql_demo -c "CREATE DATABASE $DATABASE"
    fi
}

up() {
    local began=$SECONDS
    say "Preparing"
    "$ROOT/scripts/setup.sh" run
    find_pg
    BIN=$("$PG_CONFIG" --bindir)
    QUIET=1 "$ROOT/scripts/build.sh"
    "$ROOT/scripts/install.sh"
    mkdir -p "$DEMO"
    PG_DIR=$(pg_folder demo/postgres) PG_PORT=25432 KAFKA_PORT=29092
    load_state || true
    start_kafka
    start_postgres
    printf '%s\n' "PG_DIR='$PG_DIR'" "PG_PORT=$PG_PORT" "KAFKA_PORT=$KAFKA_PORT" >"$STATE"
    say "  ready after $((SECONDS - began))s"
    # shellcheck source=scripts/demo-story.sh
    . "$ROOT/scripts/demo-story.sh"
    tell_story
    cat <<TEXT

Both are still running. To play on:

    eval "\$(make -s env)"
    psql
    scripts/kafka tool org.apache.kafka.tools.consumer.ConsoleConsumer \\
        --bootstrap-server \$OUTBOX_BROKERS --topic outbox.event.order --from-beginning
    make demo-down        # stops both

PostgreSQL's log: $PG_DIR/server.log
Kafka's log:      $DEMO/kafka/kafka.log
TEXT
}

case ${1:-up} in
    up) up ;;
    env)
        find_pg
        environment
        ;;
    down) down ;;
    remove) remove ;;
    *) die "unknown command: $1" ;;
esac
