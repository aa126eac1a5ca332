# All looks from the first instruction on, and then more of them, for a client.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --cpus 2 \
    --cmdline "console=ttyS0 quiet panic=-1 $(cat /lab/words)" --record "$LAB_OUT/guest.kvmprof" --tasks=20
says 'truth is told'
record late.kvmprof --tasks=1
sampled 300
stop_recording
record pipe.kvmprof --tasks --pid "$(grep '^truth on-pipe' "$console" | cut -d ' ' -f 3)"
sampled 100
stop_recording
kill $machine
ended
kvmprof report --tasks "$LAB_OUT/late.kvmprof" >"$LAB_OUT/late.report"
kvmprof report --tasks --json --top 1000 "$LAB_OUT/late.kvmprof" >"$LAB_OUT/late.json"
kvmprof flamegraph --tasks "$LAB_OUT/late.kvmprof" --output "$LAB_OUT/late.svg"
