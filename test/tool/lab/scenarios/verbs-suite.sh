# The rules of the transport contract (transport/transporttest), case by case, and the tests of the shim, on one of the kernel's
# devices by way of libibverbs; both ends on the guest's own address. Argument: rxe or siw. RUN chooses tests; LEFT_OUT names the
# fields of Caps that the device need not have, and HAS_NOT is a pattern for what else may be a test's reason to be left out:
# any other reason fails the scenario.
. /lab/lib.sh
must "$1 on eth0" rdma_up "$1" eth0
export SLUICE_VERBS_ADDR=10.0.2.15 SLUICE_VERBS_ADDR6=fec0::15 SLUICE_RDMA_ADDRESS=10.0.2.15
suite() { # suite LOG [options]: what it says goes to LOG at once, for a kernel that dies on the way
  local log=$1
  shift
  timeout "${SUITE_S:-1200}" /lab/files/verbs.test -test.v -test.count=1 "$@" >"/share/out/$log" 2>&1
}
suite suite.txt -test.run "$RUN" -test.skip '^TestPortEvents$'
rc=$?
flap=0
if [ -n "${FLAP:-}" ]; then # it takes the interface down, and the IPv6 address with it: the last
  SLUICE_RDMA_FLAP=eth0 suite flap.txt -test.run '^TestPortEvents$' || flap=$?
  cat /share/out/flap.txt >>/share/out/suite.txt
fi
awk -v device="$1" -v may="$LEFT_OUT" -v has_not="${HAS_NOT:-^$}" '
  BEGIN { n = split(may, l, " "); for (i = 1; i <= n; i++) allowed[l[i]] = 1; n = 0 }
  /^ *=== (RUN|CONT|NAME) / { cur = $3; if ($2 == "RUN") order[++n] = cur; next }
  /^ *--- (PASS|FAIL|SKIP): / { how[$3] = substr($2, 1, 4); took[$3] = $4; cur = $3; next }
  /^ +[a-z_0-9]+\.go:[0-9]+: / { t = $0; sub(/^ +[a-z_0-9]+\.go:[0-9]+: /, "", t); why[cur] = why[cur] (why[cur] == "" ? "" : "; ") t }
  function excused(w,  b) {
    if (w ~ has_not) return 1
    if (w !~ /^Caps\.[A-Za-z]+ is false on /) return 0
    b = w; sub(/^Caps\./, "", b); sub(/ .*/, "", b)
    return b in allowed
  }
  END {
    printf "## on %s\n", device
    for (i = 1; i <= n; i++) { p = order[i]; while (match(p, /\/[^\/]*$/)) { p = substr(p, 1, RSTART - 1); parent[p] = 1 } }
    for (i = 1; i <= n; i++) {
      c = order[i]
      if (c in parent && c in how && how[c] == "PASS") continue
      h = (c in how) ? how[c] : "no end"
      count[h]++
      printf "%-6s %9s  %s%s\n", h, took[c], c, (h == "PASS" || why[c] == "") ? "" : ": " substr(why[c], 1, 400)
      if (h == "SKIP" && !excused(why[c])) { print "## left out for no reason that holds here: " c; bad = 1 }
    }
    printf "## %s: %d passed, %d left out, %d failed, %d without an end\n", device, count["PASS"], count["SKIP"], count["FAIL"], count["no end"]
    exit bad || count["PASS"] < 1 || count["FAIL"] || count["no end"]
  }' /share/out/suite.txt | tee /share/out/table.txt
table=${PIPESTATUS[0]}
[ $rc = 0 ] || { tail -40 /share/out/suite.txt; fail "the suite ends with status $rc"; }
[ $flap = 0 ] || { cat /share/out/flap.txt; fail "the port's way down and up ends with status $flap"; }
[ "$table" = 0 ] || fail "the table"
least() { [ "$(grep -c '^PASS' /share/out/table.txt)" -ge "$1" ]; }
[ -n "${FEW:-}" ] || must "as many cases as there should be" least "$LEAST"
held() { rdma resource show "$1" | grep 'comm verbs.test'; }
left() { local w; for w in qp cm_id mr pd cq; do ! held $w || return 1; done; }
must "nothing is held in the end" waitfor 60 left
