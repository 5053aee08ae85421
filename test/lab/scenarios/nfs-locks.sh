# The kernel's lock managers of two clients against ours: ranges of fcntl, and the hand-over of fcntl and flock to a waiter. The
# host looks into the captures afterwards.
. /lab/lib.sh
. /lab/files/nfs-lib.sh
must "veth" veth_up 1500
must "siw on v0" rdma_up siw v0
must "sluiced" serve
must "two clients" clients_up
must "capture" sniff
echo content >/mnt/one/lockfile

# ranges: they conflict where they overlap, whoever asks
ranges() {
  lk one fcntl x a 0 10 && has a.got || return
  lk two fcntl nx b 5 10 && has b.no && no b.got || return
  lk two fcntl ns b 9 1 && has b.no || return
  lk two fcntl nx b 10 10 && has b.got || return
  lk one fcntl nx c 15 1 && has c.no || return
  lk one fcntl ns c 20 0 && has c.got && lk two fcntl ns d 30 5 && has d.got || return
  lk two fcntl nx e 40 1 && has e.no || return
  # F_GETLK says who
  two python3 -c 'import fcntl,struct
r = struct.unpack("hhqqi4x", fcntl.fcntl(open("/mnt/two/lockfile","r+"), fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 3, 1, 0)))
assert r[0] == fcntl.F_WRLCK and (r[2], r[3]) == (0, 10), r' || return
  go a && go b && go c && go d || return
  lk two fcntl nx b 0 0 && has b.got && go b
}

# soon MS...: within 1 s where the machine lets it; never as late as a client's own polling, every 30 s, would be
soon() {
  echo "$*"
  [ "$(printf '%s\n' "$@" | sort -n | head -1)" -lt 1000 ] && [ "$(printf '%s\n' "$@" | sort -n | tail -1)" -lt 15000 ]
}
# handover KIND FROM TO
handover() {
  local i all=()
  for i in 1 2 3; do
    lk "$2" "$1" x a && has a.got && lk "$3" "$1" x b && has b.asks && sleep 1 && no b.got && go a && has b.got || return
    all+=($(($(at b.got) - $(at a.gone))))
    go b || return
  done
  soon "${all[@]}"
}

must "ranges" ranges
for k in fcntl flock; do
  must "$k: one to two" handover $k one two
  must "$k: two to one" handover $k two one
done
sniff_end
umount -f -l /mnt/one
two umount -f -l /mnt/two
exit 0
