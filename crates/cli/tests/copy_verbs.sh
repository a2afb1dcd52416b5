#!/usr/bin/env bash
# Copies a file by RDMA to two hosts; one is killed on the way and resumed; the digests of both copies must be those of
# the source. For the virtual machine of tools/rdma-vm, where node0 is the source and node1 and node2 are the hosts.
#
#   tools/rdma-vm -- crates/cli/tests/copy_verbs.sh target/release/squall [BYTES]        (default 48 MiB)
set -euo pipefail

SQUALL="$(realpath "$1")"
BYTES="${2:-50331648}"
BLOCKS=$((BYTES >> 20))
SCRATCH="$(mktemp -d)"
HOSTS=(1 2)
declare -A PIDS=()

clean_up() {
    for host in "${HOSTS[@]}"; do
        [ -z "${PIDS[$host]:-}" ] || kill -9 "${PIDS[$host]}" 2>/dev/null || true
    done
    rm -rf "$SCRATCH"
}
trap clean_up EXIT

serve() {
    ip netns exec "node$1" "$SQUALL" serve --folder "h$1" --secret-file secret --device "rxe$1" 2>>"h$1.log" &
    PIDS[$1]=$!
    for _ in $(seq 100); do
        ! ip netns exec "node$1" ss -Hltn 'sport = :7401' | grep -q . || return 0
        sleep 0.1
    done
    echo "host $1 does not listen" >&2
    exit 1
}

copy() {
    ip netns exec node0 "$SQUALL" cp image 10.79.0.2:image 10.79.0.3:image --secret-file secret \
        --transport verbs --device rxe0
}

held() {
    tail -c +41 h2/.image.squall-held 2>/dev/null | tr -d '\0' | wc -c
}

cd "$SCRATCH"
head -c 32 /dev/urandom | base64 >secret
head -c "$BYTES" /dev/urandom >image
for host in "${HOSTS[@]}"; do
    mkdir "h$host"
    serve "$host"
done

copy &
COPY=$!
until [ "$(held)" -gt 2 ]; do
    kill -0 "$COPY" 2>/dev/null || { echo "the copy was over before a host could be killed" >&2; exit 1; }
    sleep 0.01
done
kill -9 "${PIDS[2]}"
echo "host 2 was killed with $(held) of $BLOCKS blocks"
! wait "$COPY" || { echo "the copy does not say that a host was lost" >&2; exit 1; }
serve 2
copy

right="$(sha256sum <image)"
for host in "${HOSTS[@]}"; do
    [ "$(sha256sum <"h$host/image")" = "$right" ] || { echo "host $host has another file" >&2; exit 1; }
done
echo "both hosts have the file"
