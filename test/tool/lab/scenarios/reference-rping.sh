# The guest's rping over siw, both ends in the guest: what a working pair looks like, with its pcap.
. /lab/lib.sh
must "siw on eth0" rdma_up siw_knobs eth0
a=10.0.2.15 # RDMA to 127.0.0.1 does not work in the guest, whatever device there is
pair() {
  local n=$1
  shift
  rping -s -a $a -p 7174 -C "$n" "$@" >/tmp/server.log 2>&1 &
  local server=$!
  waitfor 10 listening 7174 || return
  rping_client $a 7174 "$n" "$@" && wait $server
}
capture lo rping tcp port 7174
must "rping, captured" pair 3
capture_end
must "rping of 65535 bytes" pair 20 -S 65535
echo Y >/sys/module/siw_knobs/parameters/mpa_crc_required
must "rping with CRC" pair 20 -S 65535
check() {
  /lab/rdmacheck server $a 7175 &
  waitfor 10 listening 7175 && timeout 60 /lab/rdmacheck client $a 7175 && wait $!
}
must "rdmacheck" check
