# The kernel's RoCE device, both ends on the guest's own address: verbs, the connection manager, and how fast perftest is on it.
. /lab/lib.sh
a=10.0.2.15
must "rxe on eth0" rdma_up rxe eth0
gid=$(rdma_gid $a) || fail "no GID of $a"
pingpong() {
  ibv_rc_pingpong -e -d rdma0 -g "$gid" -n 200 >/tmp/server.log 2>&1 &
  local server=$!
  waitfor 60 listening 18515 || return
  timeout 300 ibv_rc_pingpong -e -d rdma0 -g "$gid" -n 200 127.0.0.1 && wait $server
}
must "ibv_rc_pingpong" pingpong
pair() {
  local n=$1
  shift
  rping -s -a $a -p 7174 -C "$n" "$@" >/tmp/server.log 2>&1 &
  local server=$!
  waitfor 60 rdma_listening 7174 || return
  rping_client $a 7174 "$n" "$@" && wait $server
}
must "rping" pair 20
must "rping of 65535 bytes" pair 20 -S 65535
check() {
  /lab/rdmacheck server $a 7175 &
  waitfor 60 rdma_listening 7175 && timeout 300 /lab/rdmacheck client $a 7175 && wait $!
}
must "rdmacheck" check
must "ib_read_bw, 128 KiB" perf ib_read_bw $a -s 131072 -n 100 -t 8
must "ib_write_bw, 128 KiB" perf ib_write_bw $a -s 131072 -n 100 -t 8
must "ib_read_bw, 4 KiB" perf ib_read_bw $a -s 4096 -n 1000 -t 8
must "ib_read_lat, 4 KiB" perf ib_read_lat $a -s 4096 -n 300
# It has to be able to fail: a connection to where there is no listener, and one whose device is gone
! rping_client $a 7999 1 >/dev/null || fail "rping connects to a port without a listener"
must "the device ends" rdma link delete rdma0
! rping_client $a 7174 1 >/dev/null || fail "rping works without a device"
