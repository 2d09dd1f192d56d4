#!/usr/bin/env bash
# Run one command on several pretended machines: network namespaces joined by a bridge, each with its
# own address and nothing else of this machine's network. Needs root and iproute2; leaves nothing behind.
#
#   bench/netns.sh COUNT RATE [nat=INDEX,...] -- COMMAND [ARGUMENT...]
#   bench/netns.sh 3 100mbit -- python peer.py
#   bench/netns.sh 3 none nat=1,2 -- python peer.py
#
# RATE limits each machine's link both ways (kbit, mbit or gbit; "none" for no limit); several, with commas, are the
# first machine's, the second's and so on, the last one also that of all the rest. A machine named after
# nat= stands in a home of its own: its router lets it out under the router's address, from a new port for each
# destination, and lets in only answers (needs nftables). The command runs once per machine, sees the same
# files, and finds out who it is from
#   ATOLL_HOST_INDEX   0, 1, ...           ATOLL_HOST_IP      its own address
#   ATOLL_HOST_COUNT   how many there are  ATOLL_HOST_IPS     all addresses, by index
#                                          ATOLL_PUBLIC_IPS   what others see of them: a router's, behind one
# Lines it prints begin with its index. Exits with the first failure's status; Ctrl-C ends all.
set -euo pipefail

usage() { sed -n '2,20s/^# \{0,1\}//p' "$0" >&2; exit 2; }

nat=,
if [[ ${3-} =~ ^nat=([0-9]+(,[0-9]+)*)$ ]]; then
    nat=",${BASH_REMATCH[1]},"
    set -- "$1" "$2" "${@:4}"
fi
[[ $# -ge 4 && $3 == -- && $1 =~ ^[1-9][0-9]?$ && $2 =~ ^(none|[0-9]+[kmg]bit)(,(none|[0-9]+[kmg]bit))*$ ]] || usage
count=$1
IFS=, read -ra rates <<<"$2"
shift 3
[[ $(id -u) == 0 ]] || { echo "error: network namespaces need root; try: sudo $0 ..." >&2; exit 2; }
command -v ip >/dev/null || { echo "error: the 'ip' command is missing; install iproute2" >&2; exit 2; }
[[ $nat == , ]] || command -v nft >/dev/null || { echo "error: 'nft' is missing; install nftables" >&2; exit 2; }

name="atoll$$"
hub="$name-hub"
net="10.$((64 + $$ % 64)).$(($$ / 64 % 256))"
ips=() public=()
for ((i = 0; i < count; i++)); do
    public+=("$net.$((i + 1))")
    if [[ $nat == *,$i,* ]]; then ips+=("192.168.$((i + 1)).2"); else ips+=("${public[i]}"); fi
done
jobs_pids=()

own_spaces() { ip netns list | awk -v own="$name-" 'index($1, own) == 1 { print $1 }'; }
own_pids() { for ns in $(own_spaces); do ip netns pids "$ns" 2>/dev/null || true; done; }

# Whatever still runs in our namespaces is asked to leave, then made to.
cleanup() {
    trap - EXIT INT TERM
    local ns pid tries=0
    for pid in $(own_pids); do kill -TERM "$pid" 2>/dev/null || true; done
    while [[ -n $(own_pids) && $((tries++)) -lt 30 ]]; do sleep 0.1; done
    for pid in $(own_pids); do kill -KILL "$pid" 2>/dev/null || true; done
    for ns in $(own_spaces); do ip netns delete "$ns" 2>/dev/null || true; done
    wait 2>/dev/null || true
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A bucket holds at least five milliseconds of traffic, or the kernel's timer cannot fill the link.
shape() {
    local ns=$1 dev=$2 rate=${rates[$3]-${rates[-1]}} scale
    local number=${rate%[kmg]bit}
    [[ $rate != none ]] || return 0
    case $rate in *kbit) scale=1000 ;; *mbit) scale=1000000 ;; *) scale=1000000000 ;; esac
    local burst=$((number * scale / 8 / 200))
    ((burst >= 16384)) || burst=16384
    ip netns exec "$ns" tc qdisc add dev "$dev" root tbf rate "$rate" burst "$burst" latency 50ms
}

# A home router: a new port for each destination, so that nobody else can guess the way in.
route() {
    local ns=$1 i=$2 home="192.168.$(($2 + 1))"
    ip netns add "$ns"
    ip -n "$ns" link set lo up
    ip netns exec "$ns" sysctl -q net.ipv4.ip_forward=1
    ip netns exec "$ns" nft -f - <<'RULES'
table ip home {
    chain out { type nat hook postrouting priority 100; oifname "wan" masquerade fully-random; }
    chain in { type filter hook input priority 0; policy drop; ct state established,related accept; iifname != "wan" accept; }
    chain through {
        type filter hook forward priority 0; policy drop
        ct state established,related accept
        iifname "lan" oifname "wan" accept
    }
}
RULES
    ip -n "$ns" link add wan type veth peer name "port$i" netns "$hub"
    ip -n "$ns" address add "${public[i]}/24" dev wan
    ip -n "$ns" link set wan up
    ip -n "$ns" link add lan type veth peer name eth0 netns "$name-$i"
    ip -n "$ns" address add "$home.1/24" dev lan
    ip -n "$ns" link set lan up
    ip -n "$name-$i" address add "$home.2/24" dev eth0
    ip -n "$name-$i" link set eth0 up
    ip -n "$name-$i" route add default via "$home.1"
}

ip netns add "$hub"
ip -n "$hub" link add bridge type bridge
ip -n "$hub" link set bridge up
for ((i = 0; i < count; i++)); do
    ns="$name-$i"
    ip netns add "$ns"
    ip -n "$ns" link set lo up
    if [[ $nat == *,$i,* ]]; then
        route "$name-nat$i" "$i"
    else
        ip -n "$ns" link add eth0 type veth peer name "port$i" netns "$hub"
        ip -n "$ns" address add "${ips[i]}/24" dev eth0
        ip -n "$ns" link set eth0 up
    fi
    ip -n "$hub" link set "port$i" master bridge up
    shape "$ns" eth0 "$i"
    shape "$hub" "port$i" "$i"
done

for ((i = 0; i < count; i++)); do
    ATOLL_HOST_INDEX=$i ATOLL_HOST_COUNT=$count ATOLL_HOST_IP=${ips[i]} ATOLL_HOST_IPS="${ips[*]}" \
        ATOLL_PUBLIC_IPS="${public[*]}" \
        ip netns exec "$name-$i" "$@" > >(sed -u "s/^/[$i] /") 2> >(sed -u "s/^/[$i] /" >&2) &
    jobs_pids+=($!)
done
status=0
for pid in "${jobs_pids[@]}"; do
    wait "$pid" || { code=$?; ((status != 0)) || status=$code; }
done
exit "$status"
