# An iWARP adapter, by way of libibverbs, against our software engine: siw on v0 stands for the adapter, the engine is at the far
# end of a veth pair. Both are ours; between them is what a wire carries.
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
must "the target ends in good order" eval "kill $daemon && wait $daemon"
