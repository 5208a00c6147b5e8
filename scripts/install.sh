#!/usr/bin/env bash
# Copies the built extension into the PostgreSQL found: the library, the control file, the SQL scripts.
# DESTDIR is put in front of the places, for packaging.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

find_pg
library=$TARGET/release/liboutbox_ext.so
[ -f "$library" ] || die "$library does not exist" "run: make build"
library_folder=${DESTDIR:-}$("$PG_CONFIG" --pkglibdir)
extension_folder=${DESTDIR:-}$("$PG_CONFIG" --sharedir)/extension

# A running server has the old file mapped: a new file takes the name, the old one lives on until the server restarts.
put() {
    local from=$1 to=$2 mode=$3
    cmp -s "$from" "$to" && return 0
    mkdir -p "$(dirname "$to")"
    [ -w "$(dirname "$to")" ] || die "no permission to write to $(dirname "$to")" \
        "only this step needs root: sudo $ROOT/scripts/install.sh"
    install -m "$mode" "$from" "$to.new"
    mv -f "$to.new" "$to"
}

put "$library" "$library_folder/outbox_ext.so" 755
put "$ROOT/outbox_ext.control" "$extension_folder/outbox_ext.control" 644
for script in "$ROOT"/sql/outbox_ext--*.sql; do
    put "$script" "$extension_folder/$(basename "$script")" 644
done
say "  installed: $library_folder/outbox_ext.so and $extension_folder/outbox_ext.control"
