# This machine will vanish while it writes.
. /lab/lib.sh
must "siw on eth0" rdma_up siw eth0
must "iscsid" iscsid_up
must "login" iscsi_login iser "$TARGET" "10.0.2.2:$PORT"
dev=$(disk "$TARGET") || fail "no disk"
fio --name=w --filename="$dev" --size=128m --bs=256k --rw=randwrite --direct=1 --ioengine=libaio --iodepth=32 --time_based --runtime=600 >/dev/null 2>&1 &
busy() { [ "$(awk '{print $7}' "/sys/block/${dev##*/}/stat")" -gt 4000 ]; }
waitfor 120 busy || fail "fio does not write"
on_host die
fail "still here"
