# The guest's rping over stock siw against sluice rping on the host. QEMU's user network cuts TCP anew, so this shows
# that the two understand each other; frame sizes are for rping-veth.
. /lab/lib.sh
must "siw on eth0" rdma_up siw eth0
for size in 26 64 1450 4096 65535; do
  must "guest to host, $size bytes" rping_client 10.0.2.2 "$PORT" 20 -S $size
done
from_host() {
  rping -s -a 10.0.2.15 -p 7174 -S "$1" >/tmp/server.log 2>&1 &
  local server=$!
  waitfor 10 listening 7174 || return
  on_host ping "$GUEST_PORT" "$1" 20 || return
  wait $server
}
for size in 26 4096 65535; do
  must "host to guest, $size bytes" from_host $size
done
