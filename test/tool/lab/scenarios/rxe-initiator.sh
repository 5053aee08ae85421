# Our initiator by way of libibverbs to LIO's ib_isert and to our own target over RoCE: what is written is read, by other paths too.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
lio=iqn.2024-01.lab:lio
must "rxe on eth0" rdma_up rxe eth0
must "LIO" lio_up $lio $ip 3270 iser 128
must "LIO knows us" lio_patient $lio iqn.2026-11.io.sluice:lab-client
must "memory for the volume" vol_up 300
configure $ip 128
must "sluiced" daemon_up
head -c 16M /dev/urandom >/tmp/image
head -c 1M /tmp/image >/tmp/piece
who=iqn.2026-11.io.sluice:lab-client
copied() { # copied PORT TARGET
  local u="iser://$ip:$1/$2/0?provider=verbs"
  sluice discover "iser://$ip:$1?provider=verbs" --initiator $who && sluice inquiry "$u" --initiator $who &&
    sluice cp --quiet /tmp/image "$u" --initiator $who && sluice read "$u" /tmp/back --length 16MiB --initiator $who && cmp /tmp/image /tmp/back &&
    sluice write "$u" /tmp/piece --offset 20MiB --initiator $who && sluice read "$u" /tmp/back2 --offset 20MiB --length 1MiB --initiator $who && cmp /tmp/piece /tmp/back2
}
must "LIO: discover, inquiry, cp, write, read" copied 3270 $lio
must "ours: discover, inquiry, cp, write, read" copied 3260 "$TARGET"
must "ours by iSCSI/TCP reads the same" sh -c "sluice read iscsi://$ip:3260/$TARGET/0 /tmp/back3 --length 16MiB && cmp /tmp/image /tmp/back3"
cmp -n $((16 << 20)) /tmp/image /vol/disk.img || fail "the backing file is not what was written"
must "LIO: load" sluice bench "iser://$ip:3270/$lio/0?provider=verbs" --rw randread --bs 4k --iodepth 8 --runtime 3s --initiator $who
must "ours: load" sluice bench "iser://$ip:3260/$TARGET/0?provider=verbs" --rw randread --bs 4k --iodepth 8 --runtime 3s --initiator $who
must "sluiced ends in good order" daemon_down
