# The target is killed in the middle of fio and started again. Nobody helps the initiator.
. /lab/lib.sh
must "siw on eth0" rdma_up siw eth0
must "iscsid" iscsid_up
must "login" iscsi_login iser "$TARGET" "10.0.2.2:$PORT"
dev=$(disk "$TARGET") || fail "no disk"
fio_verify "$dev" "${FIO_SIZE:-32m}" >/tmp/verify 2>&1 &
fio=$!
busy() { [ "$(awk '{print $9}' "/sys/block/${dev##*/}/stat")" -gt 0 ] && [ "$(awk '{print $7}' "/sys/block/${dev##*/}/stat")" -gt 2000 ]; }
waitfor 120 busy || fail "fio does not write"
must "kill and start again" on_host kill
failed() { ! kill -0 $fio 2>/dev/null || [ "$(session_state)" != LOGGED_IN ]; }
waitfor 60 failed || echo "the session never looked lost"
back() { [ "$(session_state)" = LOGGED_IN ]; }
must "the session is back" waitfor 180 back
must "fio ends well" wait $fio
cat /tmp/verify
must "every block verifies" fio_verify "$dev" "${FIO_SIZE:-32m}" --verify_only
must "logout" iscsi_logout "$TARGET"
