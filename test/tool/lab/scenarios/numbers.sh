# The kernel's iSER initiator on a RAM disk of LIO's and on one of Sluice's, in one guest, by the same path: siw and the
# guest's loopback. Software emulation: the ratios mean something, the figures do not. SECONDS_EACH a figure.
. /lab/lib.sh
ip=10.0.2.15 lio=iqn.2024-01.lab:lio
crc=${CRC:-off}
must "siw on eth0" rdma_up siw_knobs eth0 mpa_crc_required=$([ "$crc" = on ] && echo 1 || echo 0)
must "LIO" lio_up $lio $ip 3260 iser 256
must "LIO knows us" lio_patient $lio "${INITIATOR:-iqn.2024-01.lab:guest}"
cat >/tmp/sluiced.yaml <<E
state_dir: /tmp/state
memory: 256MiB
fabric: {crc: peer}
portals: [{address: "$ip:3261"}]
volumes: [{name: m, engine: mem, size: 256MiB}]
targets: [{name: "$TARGET", luns: [{lun: 0, volume: m}]}]
E
mkdir -p /tmp/state
/lab/files/sluiced --config /tmp/sluiced.yaml >/share/out/sluiced.txt 2>&1 &
waitfor 60 listening 3261 || fail "sluiced: $(cat /share/out/sluiced.txt)"
must "iscsid" iscsid_up
must "login to LIO" iscsi_login iser $lio $ip:3260
must "login to Sluice" iscsi_login iser "$TARGET" $ip:3261
a=$(disk $lio) && b=$(disk "$TARGET") || fail "no disks"
export SIZE=128m
for d in $a $b; do must "fill $d" dd if=/dev/zero of="$d" bs=1M count=128 oflag=direct status=none; done
for job in "randread 4k 32" "randwrite 4k 32" "read 128k 16" "write 128k 16"; do
  set -- $job
  for round in 1 2 3; do
    for d in $a $b; do
      who=LIO; [ "$d" = "$b" ] && who=Sluice
      echo "$who $(fio_bench "$d" "$1" "$2" "${SECONDS_EACH:-4}" "$3")" | tee -a /tmp/results
    done
  done
done
awk -v crc="$crc" '
  { k = $3 " " $4; v[$1, k, ++n[$1, k]] = ($4 == "4k") ? $5 : $6; if (!(k in seen)) { seen[k] = 1; order[++m] = k } }
  function median(w, k,  a, b, c) { a = v[w, k, 1]; b = v[w, k, 2]; c = v[w, k, 3]
    return (a > b) ? ((b > c) ? b : (a > c) ? c : a) : ((a > c) ? a : (b > c) ? c : b) }
  END { printf "kernel iSER initiator, CRC %s, medians of 3\n%-16s %12s %12s %8s\n", crc, "", "LIO", "Sluice", "ratio"
    for (i = 1; i <= m; i++) { k = order[i]; l = median("LIO", k); s = median("Sluice", k)
      printf "%-16s %12d %12d %8.2f  (%s)\n", k, l, s, l ? s / l : 0, k ~ /4k/ ? "a second" : "KiB/s" } }' /tmp/results | tee /share/out/numbers.txt
must "logout" iscsi_logout $lio
must "logout" iscsi_logout "$TARGET"
