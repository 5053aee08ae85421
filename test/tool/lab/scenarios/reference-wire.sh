# Two guests with RoCE on the wire between them: rping and perftest, and a wire that loses packets; reference-port has an interface that goes
# down. This guest is the client; the other one runs wire-serve.sh.
. /lab/lib.sh
peer=10.8.0.2
must "the wire" wire_up
must "rxe on eth1" rdma_up rxe eth1
ready=$(await rping) || fail "the other guest is not ready: $ready"
must "ping" ping -c 2 -W 5 $peer
must "rping" rping_client $peer 7174 20
must "rping of 65535 bytes" rping_client $peer 7174 20 -S 65535
lossy() { tc qdisc add dev eth1 root netem loss 1% && PING_S=300 rping_client $peer 7174 10 -S 65535; }
must "rping, 1 of 100 packets lost" lossy
lost=$(tc -s qdisc show dev eth1 | grep -o 'dropped [0-9]*' | head -1)
echo "## $lost"
[ "${lost#dropped }" -gt 0 ] || fail "the wire lost nothing"
must "a sound wire again" tc qdisc del dev eth1 root
must "the other guest may end" tell end
