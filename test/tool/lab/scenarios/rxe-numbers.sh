# What the provider makes of an adapter, beside the kernel's own programs on the same one (rxe): the kernel's iSER initiator on a
# disk of LIO's and of ours, its NFS client on a mount of knfsd's and of ours, our initiator beside perftest. They take turns in
# each round; medians and ratios are what counts, and every round is printed. ROUNDS, SECONDS_EACH a figure. CPU is what of the
# guest's two processors our daemon took, in its own code and in the system's; profiles of it are left with the logs. With ROUNDS=0
# only what an I/O costs is counted.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
lio=iqn.2024-01.lab:lio rounds=${ROUNDS:-5} each=${SECONDS_EACH:-4} us=iqn.2026-11.io.sluice:lab-client
must "rxe on eth0" rdma_up rxe eth0
must "LIO" lio_up $lio $ip 3270 iser 128
must "LIO knows us" lio_patient $lio "${INITIATOR:-iqn.2024-01.lab:guest}"
must "LIO knows our initiator" lio_patient $lio $us
must "memory for the export" vol_up 200
mkdir -p /export /mnt/ours /mnt/knfsd
mount -t tmpfs -o size=200m none /export && chmod 777 /export
configure $ip 64
sed -i 's|{name: disk, .*}\]|{name: disk, engine: mem, size: 128MiB}]|' /tmp/sluiced.yaml
must "sluiced" daemon_up
must "knfsd" nfsd_up /export
must "client" nfs_up
must "iscsid" iscsid_up
must "login to LIO" iscsi_login iser $lio $ip:3270
must "login to Sluice" iscsi_login iser "$TARGET" $ip:3260
a=$(disk $lio) && b=$(disk "$TARGET") || fail "no disks"
must "mount of knfsd" timeout 60 mount -t nfs -o rdma,port=20049,vers=3,nolock,mountport=20048,mountproto=tcp $ip:/export /mnt/knfsd
must "mount of ours" timeout 60 mount -t nfs -o rdma,port=20050,vers=3,nolock,mountport=2050,mountproto=tcp $ip:/data /mnt/ours
export SIZE=64m
: >/tmp/results
for f in $a $b; do must "fill $f" dd if=/dev/zero of="$f" bs=1M count=64 oflag=direct status=none; done
for f in /mnt/knfsd/f /mnt/ours/f; do must "fill $f" dd if=/dev/zero of=$f bs=1M count=64 conv=fsync status=none; done

# figure WHO OF COMMAND...: the command prints "bench RW BS IOPS KiB/s"; a line of /tmp/results with what the daemon took meanwhile
ticks() { awk '{print $14, $15}' /proc/$daemon/stat; }
figure() {
  local who=$1 of=$2 before after line t0 t1
  shift 2
  t0=$(uptime_s) before=$(ticks)
  line=$("$@") || fail "$who $of: $line"
  t1=$(uptime_s) after=$(ticks)
  # shellcheck disable=SC2086
  [ $(set -- $line; [ "${4:-0}" -gt 0 ] 2>/dev/null && echo $#) = 5 ] || fail "$who $of: no figure in '$line'"
  echo "$who $of $line $(echo "$before $after $t0 $t1" | awk '{printf "%d %d", ($3 - $1) / ($6 - $5), ($4 - $2) / ($6 - $5)}')" | tee -a /tmp/results
}
# profiled NAME COMMAND...: a profile of the daemon while the command runs
profiled() {
  local name=$1 job
  shift
  "$@" >/dev/null &
  job=$!
  sleep 1
  printf 'GET /debug/pprof/profile?seconds=%d HTTP/1.0\r\nHost: sluice\r\n\r\n' "$each" >/tmp/ask
  timeout 60 nc -U /tmp/state/admin.sock </tmp/ask | LC_ALL=C sed '1,/^\r$/d' >"/share/out/$name.pprof"
  wait $job
  [ -s "/share/out/$name.pprof" ]
}
for job in ${JOBS:-randread:4k:8 randwrite:4k:8 read:128k:8 write:128k:8}; do
  IFS=: read -r rw bs depth <<<"$job"
  costs LIO iser "$a" "$rw" "$bs" "$depth"
  costs Sluice iser "$b" "$rw" "$bs" "$depth"
  costs knfsd nfs /mnt/knfsd/f "$rw" "$bs" "$depth"
  costs Sluice nfs /mnt/ours/f "$rw" "$bs" "$depth"
  for ((r = 0; r < rounds; r++)); do
    figure LIO iser fio_bench "$a" "$rw" "$bs" "$each" "$depth"
    figure Sluice iser fio_bench "$b" "$rw" "$bs" "$each" "$depth"
    figure knfsd nfs fio_bench /mnt/knfsd/f "$rw" "$bs" "$each" "$depth"
    figure Sluice nfs fio_bench /mnt/ours/f "$rw" "$bs" "$each" "$depth"
  done
  [ "$rounds" -gt 0 ] || continue
  must "profile of iser $rw $bs" profiled "iser-$rw-$bs" fio_bench "$b" "$rw" "$bs" $((each + 3)) "$depth"
  must "profile of nfs $rw $bs" profiled "nfs-$rw-$bs" fio_bench /mnt/ours/f "$rw" "$bs" $((each + 3)) "$depth"
done
# Our initiator beside perftest, at the same depth; perftest only reads memory, and there is no disk and no protocol
bench() { # bench PORT TARGET BS DEPTH
  sluice bench "iser://$ip:$1/$2/0?provider=verbs" --rw randread --bs "$3" --iodepth "$4" --runtime "${each}s" --initiator $us --output json >/tmp/bench.json 2>/tmp/bench.err ||
    { cat /tmp/bench.err; return 1; }
  tr -d '\n' </tmp/bench.json | sed 's/.*"read" *: *{//; s/}.*//' | tr ',' '\n' | awk -F: -v l="bench read-$4 $3" '/"iops"/{i = $2} /"bw"/{b = $2} END{printf "%s %d %d\n", l, i, b}'
}
raw() { # raw BYTES NAME ITERATIONS; perftest prints: size iterations peak average(MiB/s) rate(Mpps)
  local line
  line=$(perf ib_read_bw $ip -s "$1" -n "$3" -t 8 -o 8) || { echo "$line"; return 1; }
  awk -v l="bench read-8 $2" '{printf "%s %d %d\n", l, $5 * 1e6, $4 * 1024}' <<<"$line"
}
rawlat() { # size iterations min max typical average(us): one after the other, so the rate is its inverse
  local line
  line=$(perf ib_read_lat $ip -s 4096 -n 1000) || { echo "$line"; return 1; }
  awk '{printf "bench read-1 4k %d %d\n", 1e6 / $6, 4e6 / $6}' <<<"$line"
}
for ((r = 0; r < rounds; r++)); do
  figure perftest reads raw 4096 4k 4000
  figure Sluice reads bench 3260 "$TARGET" 4k 8
  figure Sluice@LIO reads bench 3270 $lio 4k 8
  figure perftest reads raw 131072 128k 400
  figure Sluice reads bench 3260 "$TARGET" 128k 8
  figure Sluice@LIO reads bench 3270 $lio 128k 8
  figure perftest reads rawlat
  figure Sluice reads bench 3260 "$TARGET" 4k 1
done
awk -v rounds="$rounds" '
  function median(w, k,  n, i, j, t, l) { n = cnt[w, k]; for (i = 1; i <= n; i++) l[i] = v[w, k, i] + 0
    for (i = 2; i <= n; i++) { t = l[i]; for (j = i - 1; j >= 1 && l[j] > t; j--) l[j + 1] = l[j]; l[j + 1] = t }
    return n % 2 ? l[(n + 1) / 2] : (l[n / 2] + l[n / 2 + 1]) / 2 }
  { k = $2 " " $4 " " $5; v[$1, k, ++cnt[$1, k]] = ($5 == "4k") ? $6 : $7; if (!(k in seen)) { seen[k] = 1; order[++m] = k }
    if ($1 == "Sluice") { user[k] += $8; sys[k] += $9 }
    if (!(($1, k) in has)) { has[$1, k] = 1; who[k] = who[k] " " $1 } }
  END { printf "rxe, depth 8, medians of %s rounds\n%-22s %-12s %10s %10s %7s %5s  %s\n", rounds, "", "beside", "it", "Sluice", "ratio", "bar", "CPU of sluiced: own, system"
    for (i = 1; i <= m; i++) { k = order[i]; s = median("Sluice", k); nw = split(who[k], ws, " ")
      for (w = 1; w <= nw; w++) if (ws[w] != "Sluice") { l = median(ws[w], k); r = l ? s / l : 0
        bar = (ws[w] == "LIO" || ws[w] == "knfsd") ? (k ~ / 4k/ ? 0.7 : 0.95) : ""
        printf "%-22s %-12s %10d %10d %7.2f %5s  %d %%, %d %%  %s%s\n", k, ws[w], l, s, r, bar, user[k] / cnt["Sluice", k], sys[k] / cnt["Sluice", k], k ~ / 4k/ ? "I/Os a second" : "KiB/s", bar != "" && r < bar ? "  BELOW THE BAR" : "" } } }' /tmp/results | tee /share/out/numbers.txt
cp /tmp/results /share/out/rounds.txt
must "umount" umount -i /mnt/ours /mnt/knfsd
must "logout" iscsi_logout $lio
must "logout" iscsi_logout "$TARGET"
must "sluiced ends in good order" daemon_down
