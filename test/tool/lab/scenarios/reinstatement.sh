# The initiator's side of the connection breaks and nobody tells the target. The kernel logs in again with the ISID it
# had (RFC 7143 6.3.5): the target ends the old session and its commands before it lets the new one in.
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
for ((i = 1; i <= CUTS; i++)); do
  kill -0 $fio 2>/dev/null || { cat /tmp/verify; fail "fio ended"; }
  must "reinstated $i" on_host cut deserted
done
touch /tmp/enough
must "fio saw no error" wait $fio
cat /tmp/verify
must "logout" iscsi_logout "$TARGET"
