# A LUN number is given to another volume while 32 direct writes are in flight. Arguments: iser or tcp. The host compares the
# other volume byte by byte, and shows with a target that lacks the gate that such writes would be found.
. /lab/lib.sh
transport=$1
[ "$transport" = tcp ] || must "siw on eth0" rdma_up siw eth0
must "iscsid" iscsid_up
refused() { echo $(($(cat "/sys/block/${dev##*/}/device/ioerr_cnt"))); }
# begin: a session, and 32 writes in flight that go on whatever becomes of each
begin() {
  must "the old volume" on_host fresh
  must "login" iscsi_login "$transport" "$TARGET" "10.0.2.2:$PORT"
  dev=$(disk "$TARGET") || fail "no disk"
  echo 5 >"/sys/block/${dev##*/}/device/timeout" # Linux asks again for six times as long
  fio --name=w --filename="$dev" --bsrange=4k-16k --rw=randwrite --direct=1 --ioengine=libaio --iodepth=32 --time_based --runtime=900 \
    --continue_on_error=write --error_dump=0 --output-format=json --output=/tmp/fio.json >/tmp/fio.err 2>&1 &
  fio=$!
  inflight() { [ "$(awk '{print $2}' "/sys/block/${dev##*/}/inflight")" -ge 32 ] && [ "$(awk '{print $7}' "/sys/block/${dev##*/}/stat")" -gt 64 ]; }
  waitfor 120 inflight || fail "no 32 writes are in flight"
  before=$(refused)
}
# finish: fio ends, and says how many of its writes failed
finish() {
  kill -INT $fio
  wait $fio
  errors=$(sed -n 's/.*"total_err" : \([0-9]*\).*/\1/p' /tmp/fio.json)
  echo "## $errors writes failed, $(($(refused) - before)) answers were refusals"
}
for way in step gap cut; do
  begin
  must "$way: remap" on_host remap $way
  many() { [ $(($(refused) - before)) -ge 64 ]; }
  waitfor 120 many || fail "$way: $(($(refused) - before)) commands were refused"
  finish
  [ "${errors:-0}" -gt 0 ] || fail "$way: no write failed: $(cat /tmp/fio.err)"
  must "$way: not a byte is in the other volume" on_host intact
  dd if=/dev/zero of="$dev" bs=4096 count=1 oflag=direct 2>/dev/null && fail "$way: a write before a new login is executed"
  must "$way: nor by a later write" on_host intact
  must "logout" iscsi_logout "$TARGET"
  must "login again" iscsi_login "$transport" "$TARGET" "10.0.2.2:$PORT"
  dev=$(disk "$TARGET") || fail "no disk after the login"
  must "a write to what is known now" dd if=/dev/zero of="$dev" bs=4096 count=1 oflag=direct
  must "it is there, and nothing else" on_host written
  must "logout" iscsi_logout "$TARGET"
done
must "a target without the gate" on_host lie
begin
must "remap" on_host remap step
must "the check finds it" on_host touched
finish
iscsi_logout "$TARGET"
exit 0
