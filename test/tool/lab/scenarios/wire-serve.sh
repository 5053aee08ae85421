# The second guest of reference-wire: serves rping until it is told to end.
. /lab/lib.sh
must "the wire" wire_up
must "rxe on eth1" rdma_up rxe eth1
serve() { until [ -e /tmp/enough ]; do rping -s -P -a 10.8.0.2 -p 7174 -S 65535 >/tmp/rping.log 2>&1; sleep 0.2; done; }
serve &
waitfor 60 rdma_listening 7174 || fail "rping does not listen"
must "ready" tell rping
must "the end" await end
touch /tmp/enough
killall -q rping
wait
