#!/bin/sh
# Makes the secret files that compose.yaml reads, once, in docker/secrets. Prints the key for /api and /ui.
set -eu
folder="$(dirname "$0")/secrets"
if [ -e "$folder" ]; then
    echo "$folder is there already; nothing is changed" >&2
    exit 1
fi
fresh() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
mkdir -m 700 "$folder"
password="$(fresh)" key="$(fresh)" metrics="$(fresh)"
printf '%s' "$password" > "$folder/postgres_password"
printf 'postgresql://mosaic:%s@postgres/mosaic\n' "$password" > "$folder/mosaic_database"
printf '["%s", "%s"]\n' "$key" "$metrics" > "$folder/mosaic_api_keys"
printf '%s' "$metrics" > "$folder/metrics_key"
fresh > "$folder/grafana_password"
# Containers read them as users of their own; nobody else enters the folder.
chmod 644 "$folder"/*
echo "$key"
