# Sends, RDMA Writes and RDMA Reads of 0 bytes to 1 MiB, both ways round, against the C program on librdmacm.
. /lab/lib.sh
must "veth" veth_up 1500
must "siw on v0" rdma_up siw_knobs v0
kernel_connects() {
  far /lab/files/exchange "$@" server 0.0.0.0:7300 >/tmp/ours.log 2>&1 &
  local ours=$!
  waitfor 20 grep -q listening /tmp/ours.log || return
  timeout 100 /lab/rdmacheck client 10.9.0.2 7300 >/tmp/theirs.log 2>&1
  local rc=$?
  wait $ours || rc=1
  cat /tmp/ours.log /tmp/theirs.log
  return $rc
}
we_connect() {
  /lab/rdmacheck server 10.9.0.1 7301 >/tmp/theirs.log 2>&1 &
  local theirs=$!
  waitfor 10 listening 7301 || return
  far timeout 100 /lab/files/exchange "$@" client 10.9.0.1:7301 >/tmp/ours.log 2>&1
  local rc=$?
  wait $theirs || rc=1
  cat /tmp/ours.log /tmp/theirs.log
  return $rc
}
must "the kernel connects" kernel_connects -crc peer
must "we connect" we_connect -crc peer
must "the kernel connects, CRC" kernel_connects -crc on
must "we connect, CRC" we_connect -crc on
veth_mtu 9000
must "the kernel connects, MTU 9000" kernel_connects -crc peer
must "we connect, MTU 9000" we_connect -crc peer
