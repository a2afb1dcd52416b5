#!/usr/bin/env bash
# Copies a large file to 4 hosts, each a network namespace on one bridge; one is killed on the way and resumed; the
# digests of all copies must be those of the source. Needs root.
#
#   crates/cli/tests/copy_namespaces.sh target/release/squall [BYTES]        (default 2 GiB)
set -euo pipefail

SQUALL="$(realpath "$1")"
BYTES="${2:-2147483648}"
BLOCKS=$((BYTES >> 20))
SCRATCH="$(mktemp -d)"
HOSTS=(1 2 3 4)
declare -A PIDS=()

clean_up() {
    for host in "${HOSTS[@]}"; do
        [ -z "${PIDS[$host]:-}" ] || kill -9 "${PIDS[$host]}" 2>/dev/null || true
        ip netns del "sqcp$host" 2>/dev/null || true
    done
    ip link del sqcp0 2>/dev/null || true
    rm -rf "$SCRATCH"
}
trap clean_up EXIT

serve() {
    ip netns exec "sqcp$1" "$SQUALL" serve --folder "h$1" --secret-file secret 2>>"h$1.log" &
    PIDS[$1]=$!
    for _ in $(seq 100); do
        ! ip netns exec "sqcp$1" ss -Hltn 'sport = :7401' | grep -q . || return 0
        sleep 0.1
    done
    echo "host $1 does not listen" >&2
    exit 1
}

held() {
    tail -c +41 h3/.image.squall-held 2>/dev/null | tr -d '\0' | wc -c
}

cd "$SCRATCH"
head -c 32 /dev/urandom | base64 >secret
head -c "$BYTES" /dev/urandom >image
ip link add sqcp0 type bridge
ip addr add 10.78.0.100/24 dev sqcp0
ip link set sqcp0 up
for host in "${HOSTS[@]}"; do
    ip netns add "sqcp$host"
    ip link add "sqcpv$host" type veth peer name eth0 netns "sqcp$host"
    ip link set "sqcpv$host" master sqcp0 up
    ip -n "sqcp$host" addr add "10.78.0.$host/24" dev eth0
    ip -n "sqcp$host" link set eth0 up
    mkdir "h$host"
    serve "$host"
done
TARGETS=(10.78.0.1:image 10.78.0.2:image 10.78.0.3:image 10.78.0.4:image)

"$SQUALL" cp image "${TARGETS[@]}" --secret-file secret &
COPY=$!
until [ "$(held)" -gt $((BLOCKS / 8)) ]; do sleep 0.05; done
kill -9 "${PIDS[3]}"
echo "host 3 was killed with $(held) of $BLOCKS blocks"
! wait "$COPY" || { echo "the copy does not say that a host was lost" >&2; exit 1; }
serve 3
"$SQUALL" cp image "${TARGETS[@]}" --secret-file secret

right="$(sha256sum <image)"
for host in "${HOSTS[@]}"; do
    [ "$(sha256sum <"h$host/image")" = "$right" ] || { echo "host $host has another file" >&2; exit 1; }
done
echo "all hosts have the file"
