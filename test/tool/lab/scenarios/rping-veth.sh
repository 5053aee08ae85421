# rping between the kernel's siw and sluice over a wire of known MTU: siw on v0, sluice in the namespace of v1.
# SIZES are the pings' sizes, PINGS how many of each.
. /lab/lib.sh
must "veth" veth_up 1500
must "siw on v0" rdma_up siw_knobs v0
knob() { echo "$2" >/sys/module/siw_knobs/parameters/"$1"; }
near=10.9.0.1 away=10.9.0.2 port=7174
sluice=/lab/files/sluice
served=0

serve() { # serve [options]: a server of ours at the far end, for the lines that follow
  [ $served = 0 ] || { kill $served && wait $served; } 2>/dev/null
  : >/tmp/sluice.log
  ip netns exec far $sluice rping server --persistent --address 0.0.0.0:$port "$@" >>/tmp/sluice.log 2>&1 &
  served=$!
  waitfor 20 grep -q listening /tmp/sluice.log
}
kernel_serve() { # kernel_serve ADDRESS: the kernel's server, one that outlives its clients
  pkill -x rping && waitfor 10 sh -c '! pgrep -x rping'
  rping -s -P -a "$1" -p $port -S 65535 >/tmp/rping-server.log 2>&1 &
  waitfor 10 listening $port
}
to_us() { # to_us COUNT SIZE...
  local n=$1 s
  shift
  for s in "$@"; do rping_client $away $port "$n" -S "$s" || { echo "size $s"; tail -3 /tmp/sluice.log; return 1; }; done
}
from_us() { # from_us COUNT OPTIONS SIZE...
  local n=$1 o=$2 s
  shift 2
  for s in "$@"; do
    # shellcheck disable=SC2086
    far $sluice rping client --address $near:$port --count "$n" --size "$s" --timeout 60s $o >/tmp/client.log 2>&1 || { echo "size $s $o"; cat /tmp/client.log; return 1; }
  done
}

capture v0 rping-veth tcp port $port
for mtu in 1500 9000; do
  veth_mtu $mtu
  must "serve, mtu $mtu" serve --crc peer
  must "kernel to us, mtu $mtu" to_us $PINGS $SIZES
  knob mpa_crc_required Y
  must "kernel to us, mtu $mtu, CRC (kernel asks)" to_us $PINGS $SIZES
  knob mpa_crc_required N
  must "serve, mtu $mtu, CRC" serve --crc on
  must "kernel to us, mtu $mtu, CRC (we demand)" to_us $PINGS 65535
  must "kernel serves" kernel_serve $near
  must "us to kernel, mtu $mtu" from_us $PINGS "--crc peer" $SIZES
  # siw takes CRC when the initiator asks; as responder it cannot demand it
  must "us to kernel, mtu $mtu, CRC" from_us $PINGS "--crc on" $SIZES
done
veth_mtu 1500
serve --crc peer

knob mpa_version 1
must "MPA revision 1, kernel to us" to_us $PINGS 64 65535
# The other way round fails between two kernels as well: without IRD and ORD in the request, the kernel's rping has a
# read depth of 0 and cannot fetch.
knob mpa_version 2
must "MPA revision 2, us to kernel" from_us $PINGS "--crc peer --mpa-rev 2" 65535
knob peer_to_peer Y
must "peer-to-peer, kernel to us" to_us $PINGS 64 65535
must "peer-to-peer, us to kernel" from_us $PINGS "--crc peer --p2p" 65535
knob peer_to_peer N
knob try_gso Y
must "kernel's large frames" to_us $PINGS 65535
must "our frames to such a kernel" from_us $PINGS "--crc peer" 65535
knob try_gso N

ip netns exec far $sluice rping server --persistent --address '[fd09::2]:7176' >/tmp/sluice6.log 2>&1 &
waitfor 20 grep -q listening /tmp/sluice6.log
must "IPv6, kernel to us" rping_client fd09::2 7176 10 -S 4096
must "IPv6 kernel serves" kernel_serve fd09::1
near='[fd09::1]' must "IPv6, us to kernel" from_us $PINGS "--crc peer" 4096

capture_end
