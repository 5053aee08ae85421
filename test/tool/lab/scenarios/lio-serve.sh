# The kernel's target for our initiator on the host. Argument: iser or tcp.
. /lab/lib.sh
t=iqn.2024-01.lab:lio
[ "$1" = tcp ] || must "siw on eth0" rdma_up siw eth0
must "LIO" lio_up $t 10.0.2.15 3260 "$1" 64
must "LIO knows us" lio_patient $t iqn.2026-11.io.sluice:host
waitfor 20 listening 3260 || fail "LIO does not listen"
must "discover, inquiry, copy, compare" on_host copy
