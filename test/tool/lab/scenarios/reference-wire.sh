# Two guests with RoCE on the wire between them: rping and perftest, a wire that loses packets, an interface that goes down and
# comes back. This guest is the client; the other one runs wire-serve.sh.
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
# Down: what is under way fails, for the adapter gives up by itself; up: connections can be made again.
rping -c -a $peer -p 7174 -S 65535 -C 1000000 -v >/tmp/long.log 2>&1 &
long=$!
waitfor 60 sh -c '[ $(grep -ac "^ping data" /tmp/long.log) -gt 5 ]' || fail "rping does not flow"
must "the interface goes down" ip link set eth1 down
must "the port is down" waitfor 60 grep -q DOWN /sys/class/infiniband/rdma0/ports/1/state
ended() { ! kill -0 $long 2>/dev/null; }
must "rping under way ends" waitfor 200 ended
must "the interface comes back" ip link set eth1 up
ip addr add fd08::1/64 dev eth1 nodad 2>/dev/null
must "the port is active" waitfor 60 grep -q ACTIVE /sys/class/infiniband/rdma0/ports/1/state
again() { rping_client $peer 7174 5; }
must "rping again" waitfor 200 again
must "the other guest may end" tell end
