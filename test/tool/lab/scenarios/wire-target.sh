# The second guest of wire-iser and wire-port: our target, and what the first guest asks for.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
must "the wire" wire_up
must "rxe on eth1" rdma_up rxe eth1
if [ -n "${LIO:-}" ]; then
  must "LIO" lio_up "$LIO" 10.8.0.2 3270 iser 64
  must "LIO knows the initiator" lio_patient "$LIO" iqn.2024-01.lab:guest
fi
must "memory for the volume" vol_up 300
configure 10.8.0.2 128
must "sluiced" daemon_up
counters_and_sessions() {
  local c
  for c in /sys/class/infiniband/rdma0/ports/1/hw_counters/*; do case ${c##*/} in sent_pkts | *err* | *seq* | duplicate*) echo -n "${c##*/}=$(cat "$c") " ;; esac; done
  admin session list
  tail -n 5 /share/out/sluiced.txt
}
# with_ack ACK_TIMEOUT: the target again, with this
with_ack() {
  daemon_down && FABRIC="[{provider: iwarp}, {provider: verbs, devices: [rdma0], ack_timeout: $1}]" configure 10.8.0.2 128 && daemon_up
}
spoil() { dd if=/dev/zero of=/vol/disk.img bs=4096 seek="${1:-1000}" count=4 conv=notrunc status=none; }
# The interface goes down and comes back; what the daemon says of it
state=/sys/class/infiniband/rdma0/ports/1/state
port_down() { mark=$(wc -l </share/out/sluiced.txt) && ip link set eth1 down && waitfor 60 grep -q DOWN $state; }
port_up() { ip link set eth1 up && waitfor 60 grep -q ACTIVE $state; }
since() { tail -n +$((mark + 1)) /share/out/sluiced.txt | grep -aE "$1"; }
said_down() { since 'port of the RDMA device is down.*"port": 1'; }
ended_by_port() { since 'session (lost|ended)' && ! since 'session (lost|ended)' | grep -vE 'port 1 is down|port has gone down'; }
session_numbers() { admin session list | awk '/verbs/{print $1}' | xargs; }
must "ready" tell target
obey
