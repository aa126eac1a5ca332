# One guest: recorded from its first instruction on with looks at its tasks, and with the device nodes of the agent.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --cpus 2 --jitter \
    --cmdline "console=ttyS0 $quick" --record "$LAB_OUT/guest.kvmprof" --tasks=10
says 'workload running'
gathered_before=$(count)
sampled 1000
tell on
says 'nodes are used'
kill $machine
ended
kvmprof report --json "$LAB_OUT/guest.kvmprof" >"$LAB_OUT/report.json"
kvmprof report --tasks --json "$LAB_OUT/guest.kvmprof" >"$LAB_OUT/tasks.json"
kvmprof stalls --json "$LAB_OUT/guest.kvmprof" >"$LAB_OUT/stalls.json"
