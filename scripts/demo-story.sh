# shellcheck shell=bash
# The demo's story, sourced by demo.sh, which has started PostgreSQL and Kafka. Each step says what it shows, prints the
# SQL or the command as a person would type it, and its output. A second run tells the story with the next order.

STORY_SECONDS_MAX=30

step() {
    STEP=$((${STEP:-0} + 1))
    printf '\n%d. %s\n\n' "$STEP" "$*"
}

# show_sql SQL: prints it behind psql's prompt, runs it, prints the result, indented.
show_sql() {
    local line prompt="$DATABASE=# "
    while IFS= read -r line; do
        printf '    %s%s\n' "$prompt" "$line"
        # psql's own prompt shows in the same way that a statement goes on.
        case $line in
            *\; | \\* | *\\gset) prompt="$DATABASE=# " ;;
            *) prompt="$DATABASE-# " ;;
        esac
    done <<<"$1"
    psql_demo -c "\\set QUIET off" -c "\\pset footer off" -f <(printf '%s\n' "$1") 2>&1 | sed 's/^/    /'
}

ask_sql() { psql_demo -At -c "$1"; }

# wait_sql WHAT SQL: until the query says t.
wait_sql() {
    local deadline=$((SECONDS + STORY_SECONDS_MAX))
    until [ "$(ask_sql "$2")" = t ]; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            psql_demo -x -c "SELECT * FROM outbox_status" >&2
            die "waited ${STORY_SECONDS_MAX}s in vain: $1" "PostgreSQL's log: $PG_DIR/server.log"
        fi
        sleep 0.05
    done
}

story_install() {
    step "The extension. CREATE EXTENSION and the brokers' address are all there is to set up."
    show_sql "CREATE EXTENSION outbox_ext;
ALTER DATABASE $DATABASE SET outbox_ext.brokers = '127.0.0.1:$KAFKA_PORT';
SELECT pg_reload_conf();
CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY, status text NOT NULL);
CREATE TABLE IF NOT EXISTS shipments (order_id int, label text);"
}

story_emit() {
    step "A transaction changes an order and emits an event. Both are committed, or neither is."
    show_sql "BEGIN;
INSERT INTO orders VALUES ($ORDER, 'placed');
SELECT outbox_emit('order', '$ORDER', 'OrderPlaced', '{\"id\": $ORDER, \"total\": 49.90}');
COMMIT;"
    step "A transaction that rolls back: its event never exists."
    show_sql "BEGIN;
UPDATE orders SET status = 'cancelled' WHERE id = $ORDER;
SELECT outbox_emit('order', '$ORDER', 'OrderCancelled', '{\"id\": $ORDER}');
ROLLBACK;"
    step "A third one, with a header of its own."
    show_sql "BEGIN;
UPDATE orders SET status = 'paid' WHERE id = $ORDER;
SELECT outbox_emit('order', '$ORDER', 'OrderPaid', '{\"id\": $ORDER, \"by\": \"card\"}',
                   headers => '{\"traceparent\": \"00-4bf92f3577b34da6\"}');
COMMIT;"
}

# The cancelled event would lie between the two others, on the same partition, if it existed.
story_consume() {
    local records
    step "Apache Kafka's own console consumer reads the topic: timestamp, partition, headers, key, value."
    # Events scheduled for later may have been left by whoever played on the demo.
    wait_sql "the relay publishes" "SELECT NOT EXISTS (SELECT FROM outbox_pending WHERE aggregate_type = 'order' AND aggregate_id = '$ORDER')"
    # How many records the topic holds, earlier runs' included: TOPIC:PARTITION:END on each line.
    records=$("$ROOT/scripts/kafka" tool org.apache.kafka.tools.GetOffsetShell --bootstrap-server "127.0.0.1:$KAFKA_PORT" \
        --topic outbox.event.order | awk -F : '{ n += $3 } END { print n + 0 }')
    [ "$records" -gt 0 ] || die "the topic outbox.event.order is empty"
    local tool=(org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server "127.0.0.1:$KAFKA_PORT"
        --topic outbox.event.order --from-beginning --max-messages "$records" --timeout-ms $((STORY_SECONDS_MAX * 1000))
        --property print.timestamp=true --property print.partition=true --property print.headers=true
        --property print.key=true --property "key.separator=  ")
    printf '    $ %s\n' "kafka-console-consumer.sh ${tool[*]:1:5} ... | grep '  $ORDER  '"
    RECORDS=$("$ROOT/scripts/kafka" tool "${tool[@]}" 2>"$DEMO/consumer.log" | grep "  $ORDER  ") || {
        cat "$DEMO/consumer.log" >&2
        die "the console consumer saw no record of order $ORDER"
    }
    printf '%s\n' "$RECORDS" | sed 's/^/    /'
    if [ "$(wc -l <<<"$RECORDS")" -lt 2 ] || grep -q OrderCancelled <<<"$RECORDS"; then
        die "the topic does not hold what was committed"
    fi
}

# The event's id travels in the header `id`.
story_inbox() {
    local id
    id=$(sed -nE '1s/.*id:([0-9a-f-]{36}).*/\1/p' <<<"$RECORDS")
    [ -n "$id" ] || die "the record has no header id"
    step "Delivery is at least once, so a consumer may see a record twice. It asks inbox_try_consume in its own transaction:"
    local apply="BEGIN;
SELECT inbox_try_consume('shipping', '$id') AS first_time \\gset
\\echo first time: :first_time
\\if :first_time
INSERT INTO shipments VALUES ($ORDER, 'label for order $ORDER');
\\else
\\echo nothing to do
\\endif
COMMIT;"
    show_sql "$apply"
    printf '\n    the same record again:\n\n'
    show_sql "$apply"
    printf '\n    one shipment:\n\n'
    show_sql "SELECT * FROM shipments WHERE order_id = $ORDER;"
    [ "$(ask_sql "SELECT count(*) FROM shipments WHERE order_id = $ORDER")" = 1 ] || die "the record was not applied once"
}

story_status() {
    step "Where it stands: one row for the whole outbox, and each event's own state."
    show_sql "\\x on
SELECT state, waiting, oldest_due_age, in_flight, parked, last_published_at, relay_pid, last_error FROM outbox_status;"
    echo
    show_sql "SELECT event_type, state, attempts, published_at FROM outbox_event WHERE aggregate_id = '$ORDER' ORDER BY created_at;"
}

tell_story() {
    printf '\nThe story (psql and the commands below are run for real)\n'
    STEP=0
    if [ -z "$(ask_sql "SELECT 1 FROM pg_extension WHERE extname = 'outbox_ext'")" ]; then
        story_install
    else
        # Kafka may have another port than last time.
        psql_demo -c "ALTER DATABASE $DATABASE SET outbox_ext.brokers = '127.0.0.1:$KAFKA_PORT'" -At -c "SELECT pg_reload_conf()" >/dev/null
    fi
    ORDER=$(ask_sql "SELECT coalesce(max(id), 1000) + 1 FROM orders")
    story_emit
    story_consume
    story_inbox
    story_status
}
