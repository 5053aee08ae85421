# An iWARP adapter, by way of libibverbs, against our software engine: siw on v0 stands for the adapter, the engine is at the far
# end of a veth pair. Both are ours; between them is what a wire carries. Then against the kernel's own target and NFS server on siw.
. /lab/lib.sh
. /lab/files/verbs-lib.sh
near=10.9.0.1 away=10.9.0.2
must "veth" veth_up 1500
must "siw on v0" rdma_up siw v0
must "sluice rdma" sluice rdma
far sluice rping server --persistent --address 0.0.0.0:7174 >/tmp/engine.log 2>&1 &
waitfor 60 grep -q listening /tmp/engine.log || fail "the engine's server: $(cat /tmp/engine.log)"
# siw has no memory windows, so an initiator would have to show its peer all its memory: it refuses unless it is told to
closed() {
  ! timeout 100 sluice "$@" >/tmp/closed.log 2>&1 || { echo "it is done"; return 1; }
  cat /tmp/closed.log && grep -qiE 'whole-slab|window' /tmp/closed.log && ! grep -q goroutine /tmp/closed.log
}
must "rping without windows is refused, in a sentence" closed rping client --provider verbs --address $away:7174 --count 1
# A server asks for nothing: it fetches by RDMA Read from the engine's memory and writes to it
must "the adapter's server" answers $near 7176
back() { local s; for s in 26 1450 4096 65535; do far sluice rping client --address $near:7176 --count 10 --size $s --timeout 180s >/tmp/client.log 2>&1 || { echo "size $s"; cat /tmp/client.log /tmp/answers.log; return 1; }; done; }
must "the engine pings the adapter" back
must "the kernel's rping pings the adapter" rping_client $near 7176 5 -S 4096
must "memory for the volume" vol_up 300
FABRIC="[{provider: iwarp}]" configure $away 128
ip netns exec far sluiced --config /tmp/sluiced.yaml >/share/out/sluiced.txt 2>&1 &
daemon=$!
waitfor 60 far sh -c 'ss -Hltn "sport = :20050" | grep -q .' || fail "sluiced: $(cat /share/out/sluiced.txt)"
must "an initiator without windows is refused, in a sentence" closed inquiry "iser://$away:3260/$TARGET/0?provider=verbs"
must "software iWARP serves" far sluice inquiry "iser://$away:3260/$TARGET/0"

# Where whole slabs may be shown, it moves data, which are compared: what it writes the peer fetches from its memory by RDMA Read,
# what it reads the peer writes there.
ulimit -l unlimited # siw counts registered memory against it, root or not
whole='provider=verbs&exposure=whole-slab' who=iqn.2026-11.io.sluice:lab-client
head -c 16M /dev/urandom >/tmp/image
head -c 1M /dev/urandom >/tmp/piece
warned() { grep -q 'may read and write all registered memory' /tmp/warned || { echo "no word of it:"; cat /tmp/warned; return 1; }; }
moves() { # moves HOST:PORT/TARGET: a volume there and back, whole and in a piece
  local u="iser://$1/0?$whole"
  sluice inquiry "$u" --initiator $who && sluice cp --quiet /tmp/image "$u" --initiator $who 2>/tmp/warned && warned || return
  sluice read "$u" /tmp/back --length 16MiB --initiator $who && cmp /tmp/image /tmp/back && rm /tmp/back || return
  sluice write "$u" /tmp/piece --offset 20MiB --initiator $who && sluice read "$u" /tmp/back --offset 20MiB --length 1MiB --initiator $who && cmp /tmp/piece /tmp/back
}
# loads HOST:PORT/TARGET: several commands at a time, both ways, what is read compared with what was written
loads() { sluice bench "iser://$1/0?$whole" --rw randrw --bs 64k --iodepth 8 --runtime 3s --destroy --verify --initiator $who; }
files() { # files URL DIRECTORY ARGUMENTS: a file there and back
  local u=$1 d=$2 a="$3&$whole"
  sluice cp --quiet /tmp/image "$u/image?$a" 2>/tmp/warned && warned && cmp /tmp/image "$d/image" || return
  sluice cat "$u/image?$a" >/tmp/back && cmp /tmp/image /tmp/back && sluice ls "$u?$a" | grep -q image && sluice rm "$u/image?$a" && [ ! -e "$d/image" ]
}
pings_whole() { local s; for s in 26 1450 4096 65535; do timeout 100 sluice rping client --provider verbs --exposure whole-slab --address $away:7174 --count 10 --size $s >/tmp/client.log 2>&1 || { echo "size $s"; cat /tmp/client.log; return 1; }; done; }
must "whole slabs: rping to the engine" pings_whole
must "whole slabs: a volume of our target, there and back" moves "$away:3260/$TARGET"
must "  the backing file has it" cmp -n $((16 << 20)) /tmp/image /vol/disk.img
engine_reads() { far sluice read "iser://$away:3260/$TARGET/0" /tmp/back --length 16MiB && cmp /tmp/image /tmp/back; }
must "  software iWARP reads the same" engine_reads
# The comparison has to be able to fail: a block is changed behind the target
spoilt() {
  printf '0123456789abcdef' | dd of=/vol/disk.img bs=16 seek=70000 conv=notrunc status=none
  sluice read "iser://$away:3260/$TARGET/0?$whole" /tmp/back --length 16MiB --initiator $who && ! cmp /tmp/image /tmp/back
}
must "  a change behind the target is found" spoilt
must "  load" loads "$away:3260/$TARGET"
must "whole slabs: a file of our server, there and back" files "nfs+rdma://$away/data" /vol/export "nfsport=20050&mountport=2050"
lio=iqn.2024-01.lab:lio
must "LIO on siw" lio_up $lio $near 3270 iser 64
must "LIO knows us" lio_patient $lio $who
must "whole slabs: a volume of LIO's, there and back" moves "$near:3270/$lio"
must "  load" loads "$near:3270/$lio"
mkdir -p /export && mount -t tmpfs -o size=100m none /export && chmod 777 /export || fail "memory for knfsd's export"
must "knfsd on siw" nfsd_up /export
must "whole slabs: a file of knfsd's, there and back" files "nfs+rdma://$near/export" /export "nfsport=20049&mountport=20048"
must "the target ends in good order" eval "kill $daemon && wait $daemon"
