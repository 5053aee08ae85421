# The connection breaks CUTS times, each time at a random byte of the stream, while fio writes and verifies.
. /lab/lib.sh
must "siw on eth0" rdma_up siw eth0
must "iscsid" iscsid_up
must "login" iscsi_login iser "$TARGET" "10.0.2.2:$PORT"
dev=$(disk "$TARGET") || fail "no disk"
work() {
  until [ -e /tmp/enough ]; do fio_verify "$dev" 8m >/tmp/verify 2>&1 || return 1; done
}
work &
fio=$!
back() { [ "$(session_state)" = LOGGED_IN ]; }
recovered() { # the session is new, or the old one came back: either way the kernel counts it as logged in
  sleep 0.5
  waitfor 180 back
}
for ((i = 1; i <= CUTS; i++)); do
  kill -0 $fio 2>/dev/null || { cat /tmp/verify; fail "fio ended"; }
  must "cut $i" on_host cut
  must "recovered" recovered
done
touch /tmp/enough
must "fio saw no error" wait $fio
cat /tmp/verify
must "once more, undisturbed" fio_verify "$dev" 16m
must "logout" iscsi_logout "$TARGET"
