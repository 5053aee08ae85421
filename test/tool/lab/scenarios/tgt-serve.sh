# tgt for our initiator on the host.
. /lab/lib.sh
t=iqn.2024-01.lab:tgt
truncate -s 64M /tmp/disk
tgtd -f >/tmp/tgtd.log 2>&1 &
waitfor 20 tgtadm --lld iscsi --op show --mode target || fail "tgtd: $(cat /tmp/tgtd.log)"
must "target" tgtadm --lld iscsi --op new --mode target --tid 1 -T $t
must "unit" tgtadm --lld iscsi --op new --mode logicalunit --tid 1 --lun 1 -b /tmp/disk
must "everybody may" tgtadm --lld iscsi --op bind --mode target --tid 1 -I ALL
must "discover, inquiry, copy, compare" on_host copy
