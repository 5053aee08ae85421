# rping over RoCE by way of libibverbs: the kernel's tool to ours, ours to it, ours to ours, by IPv4 and IPv6; and what is left.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
must "rxe on eth0" rdma_up rxe eth0
must "sluice rdma" sluice rdma
sluice rdma | grep -q rdma0 || fail "sluice rdma does not know rdma0"
theirs_to_us() { local s; for s in $sizes; do rping_client "$1" "$2" 10 -S $s || { pkill -QUIT -x sluice; sleep 1; tail -60 /tmp/answers.log; return 1; }; done; }
kernel_serves() { # rping does not listen at two addresses
  pkill -x rping && waitfor 10 sh -c '! pgrep -x rping'
  rping -s -P -a "$1" -p 7175 -S 65535 >/tmp/server.log 2>&1 &
  waitfor 60 rdma_listening 7175
}
port=7174 sizes="26 1024 4096 65535"
for a in $ip fec0::15; do
  must "we answer at $a" answers $a $port
  must "the kernel's rping to us" theirs_to_us $a $port
  must "ours to ours" pings $a $port 10 $sizes
  must "the kernel's rping answers at $a" kernel_serves $a
  must "ours to the kernel's" pings $a 7175 10 $sizes
  port=$((port + 2)) sizes=4096 # by IPv6 it is the way that is new
done
# nothing listens there: an error in one sentence, and soon
refused() {
  timeout 60 sluice rping client --provider verbs --address $ip:7999 --count 1 >/tmp/refused.log 2>&1
  local rc=$?
  cat /tmp/refused.log
  [ $rc != 0 ] && [ $rc != 124 ] && [ "$(wc -l </tmp/refused.log)" -le 2 ] && ! grep -q goroutine /tmp/refused.log
}
must "a port without a listener" refused
ends() { local p; for p in $(pgrep -x sluice); do kill "$p"; done; wait "$answering"; waitfor 60 nothing_held || { rdma resource show; return 1; }; }
must "nothing is held in the end" ends
