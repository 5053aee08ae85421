# What becomes of rxe when its interface goes down and comes back under a connection of rdma-core's rping with itself: nothing of Sluice's is
# here. The client's end is told by the connection manager over a queue pair (1, GSI) that is the kernel's own; the message has no route:
# rxe fails the queue pair, ib_mad moves it back to sending, and it receives nothing any more. A carrier that is lost does no such harm.
# When a kernel fails this scenario for it comes back, docs/rdma.md and test/tool/lab/README.md are to be told.
. /lab/lib.sh
t=/sys/kernel/tracing
probes() {
  modprobe -a ib_uverbs rdma_ucm rdma_rxe && mount -t tracefs none $t || return
  # The functions' first arguments; a completion (ib_wc) has its status 8 bytes in and its queue pair 24, an ib_qp_attr begins with the state.
  printf '%s\n' 'p:failed rdma_rxe:rxe_qp_error qp=%di:x64' 'p:changed rdma_rxe:rxe_qp_from_attr qp=%di:x64 state=+0(%si):u32 mask=%dx:x32' \
    'p:sent ib_core:ib_mad_send_done status=+8(%si):u32 qp=+24(%si):x64' 'p:received ib_core:ib_mad_recv_done status=+8(%si):u32 qp=+24(%si):x64' >$t/kprobe_events &&
    echo 1 >$t/events/kprobes/enable
}
must "probes" probes
at() { echo "$*" >$t/trace_marker; echo "## $*"; }
# story: what became of the queue pair that messages have been received by, runs of one kind as their number
story() {
  local q
  q=$(grep -o 'received: .*' $t/trace | grep -o 'qp=.*' | sort | uniq -c | sort -rn | awk 'NR==1{print $2}')
  echo "## GSI: $q; status 2 is a local queue pair error, 5 flushed; state 3 is RTS"
  grep -E "$q|tracing_mark_write" $t/trace | grep -oE '[0-9]+\.[0-9]+: .*' | sed 's/([^)]*) //; s/ qp=0x[0-9a-f]*//; s/tracing_mark_write: /== /' |
    awk '{k = $0; sub(/^[0-9.]+: /, "", k)} k != was {if (n > 1) print "   " n " times"; print; n = 0; was = k} {n++} END{if (n > 1) print "   " n " times"}' | tail -"${STORY:-30}"
}
ip=10.0.2.15
serve() { rping -s -P -a $ip -p "$1" -S 65535 >/tmp/serve.log 2>&1 & server=$!; waitfor 60 rdma_listening "$1"; }
flow() { # flow PORT: a client that goes on
  rping -c -a $ip -p "$1" -S 65535 -C 1000000 -v >/tmp/long.log 2>&1 &
  long=$!
  waitfor 60 sh -c '[ $(grep -ac "^ping data" /tmp/long.log) -gt 5 ]'
}
stop() { kill "$@" 2>/dev/null; wait "$@" 2>/dev/null; :; }
connects() { PING_S=10 rping_client $ip "$1" 3; }

# The carrier: the interface is a bridge whose only port goes down
modprobe -a bridge dummy || fail "bridge and dummy"
ip link add d0 type dummy && ip link add br0 type bridge && ip link set d0 master br0 up && ip link set br0 up && ip addr add 10.7.0.1/24 dev br0 || fail "a bridge"
waitfor 20 grep -q up /sys/class/net/br0/operstate
must "rxe on a bridge" rdma_up rxe br0
ip=10.7.0.1
must "rping's server" serve 7174
must "rping flows" flow 7174
must "the carrier is lost" ip link set d0 down
must "  the port is down" waitfor 60 grep -q DOWN /sys/class/infiniband/rdma0/ports/1/state
must "the carrier is back" ip link set d0 up
must "  the port is up" waitfor 60 grep -q ACTIVE /sys/class/infiniband/rdma0/ports/1/state
must "rping" connects 7174
kill -0 $long || fail "the connection did not live through it"
stop $long $server
must "the adapter away" rdma link delete rdma0

ip=10.0.2.15
echo >$t/trace
must "rxe on eth0" rdma_up rxe eth0
must "rping's server" serve 7175
must "rping flows" flow 7175
at "the interface goes down"
must "  down" ip link set eth0 down
must "  the port is down" waitfor 60 grep -q DOWN /sys/class/infiniband/rdma0/ports/1/state
stop $long # whose identifier is destroyed: the other end is to be told
sleep 4
at "the interface comes back"
must "  up" ip link set eth0 up
must "  the port is up" waitfor 60 grep -q ACTIVE /sys/class/infiniband/rdma0/ports/1/state
if step "rping" connects 7175; then
  story
  fail "rxe of this kernel makes connections again: say so in docs/rdma.md and test/tool/lab/README.md"
fi
stop $server
story
# What makes it good again
must "the adapter away" rdma link delete rdma0
must "and made again" rdma_up rxe eth0
must "rping's server" serve 7176
must "rping" connects 7176
stop $server
