# The same guest of QEMU's by kvmprof, by both captures, and by the host's perf.
qemu perf 1 nokaslr -M pc -m 512
says 'workload running'
tell kernel
says 'kernel only'
attach perf perf
sampled 600
detach
attach perf.kernel perf --capture kernel
sampled 600
detach
# perf kvm: its clock is a timer of the host's, as that of --capture kernel. A sample has some 56 bytes.
perf kvm --guest -o /run/perf.data record -e cpu-clock -c 20000000 -p $machine -- sh -c '
    until [ "$(stat -c %s /run/perf.data)" -gt 50000 ]; do sleep 1; done
' >"$LAB_OUT/perf.said" 2>&1 3>&- || fail 90 "perf failed: $(cat "$LAB_OUT/perf.said")"
perf report -D -i /run/perf.data 2>/dev/null 3>&- | grep 'PERF_RECORD_SAMPLE(IP' >"$LAB_OUT/perf.samples"
echo $machine >"$LAB_OUT/vmm.pid"
tell over
ended
