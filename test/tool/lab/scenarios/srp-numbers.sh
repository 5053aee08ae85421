# ib_srp on our target beside ib_srpt, RAM disk against memory volume, both ends in one guest on rxe: ratios of medians.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
. /lab/files/srp-lib.sh
must "rxe on eth0" rdma_up rxe eth0
must "the state directory" vol_up 200 # and where configure makes a file, which is not served
configure_srp 128
sed -i 's|{name: disk, .*}\]|{name: disk, engine: mem, size: 128MiB}]|' /tmp/sluiced.yaml
grep -q 'engine: mem' /tmp/sluiced.yaml || fail "the volume is not in memory"
must "sluiced" srp_daemon_up
must "ib_srpt" srpt_up $ip 5556 128
# Memory that lies scattered is described whole: with the 12 descriptors of the default 128 KiB become two or three commands, as it happens.
must "ib_srp" srp_up ch_count="${CHANNELS:-2}" cmd_sg_entries=128
host=$(srp_ours_login "$TARGET") && theirs=$(srp_login "$srpt_id" $ip 5556) || fail "login"
ours_dev=$(srp_disk "$host") && theirs_dev=$(srp_disk "$theirs") || fail "no disk"
for d in $ours_dev $theirs_dev; do must "  fill $d" dd if=/dev/urandom of="$d" bs=1M count=64 oflag=direct status=none; done
export SIZE=64m
for job in "randread 4k 8" "randwrite 4k 8" "read 128k 8" "write 128k 8"; do
  # shellcheck disable=SC2086
  set -- $job
  costs ib_srpt srp "$theirs_dev" "$@"
  costs Sluice srp "$ours_dev" "$@"
done
out=/share/out/numbers.txt
: >$out
for ((n = 1; n <= ${ROUNDS:-5}; n++)); do
  for job in "randread 4k 8" "randwrite 4k 8" "read 128k 8" "write 128k 8"; do
    # shellcheck disable=SC2086
    set -- $job
    for side in $([ $((n % 2)) = 0 ] && echo ours theirs || echo theirs ours); do
      dev=${side}_dev
      r=$(fio_bench "${!dev}" "$1" "$2" "${SECONDS_EACH:-4}" "$3") || fail "fio on $side"
      echo "$side $1 $2 $(awk '{print $4}' <<<"$r")" | tee -a $out
    done
  done
done
awk '
  { k = $2 " " $3; v[$1, k] = v[$1, k] " " $4; jobs[k] = 1 }
  function median(s,   a, n, i, j, t) {
    n = split(s, a, " ")
    for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (a[j] + 0 < a[i] + 0) { t = a[i]; a[i] = a[j]; a[j] = t }
    return a[int((n + 1) / 2)]
  }
  END {
    for (k in jobs) {
      bar = k ~ /4k/ ? 0.7 : 0.95
      r = median(v["ours", k]) / median(v["theirs", k])
      printf "## %-14s ours %6d/s  ib_srpt %6d/s  ratio %.2f  bar %.2f%s\n", k, median(v["ours", k]), median(v["theirs", k]), r, bar, r < bar ? "  BELOW" : ""
    }
  }' $out | sort | tee /share/out/ratios.txt
[ "$(wc -l </share/out/ratios.txt)" = 4 ] || fail "figures are missing"
must "logout" srp_logout "$host"
must "logout, ib_srpt" srp_logout "$theirs"
must "sluiced ends in good order" daemon_down
