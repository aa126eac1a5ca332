# A guest of QEMU's, by the host's perf and --capture kernel at the same time, then by ptrace. The periods of the three have no common
# phase with the guest's own timer, which is at 250 Hz.
qemu db1 1 nokaslr -M pc -m 512
says 'workload running'
mkfifo /run/enough
# There is no PMU here: the clock is a timer of the host's. perf wakes up when half of its ring is full, so the ring is small.
/usr/bin/perf kvm --guest -o /run/perf.data record -g -m 4 --no-buildid -e cpu-clock -c 19300000 -p $machine -- \
    /bin/sh -c 'read -r word </run/enough' >"$LAB_OUT/perf.said" 2>&1 3>&- &
perf=$!
hz=47 attach perf.kernel db1 --capture kernel
sampled 1500
echo enough >/run/enough
wait $perf || fail 90 "perf failed: $(cat "$LAB_OUT/perf.said")"
detach
alive 'perf has ended'
/usr/bin/perf report -D -i /run/perf.data >"$LAB_OUT/perf.dump" 2>>"$LAB_OUT/perf.said" 3>&-
alive 'perf has shown what it has'
hz=47 attach perf db1
sampled 1000
detach
echo $machine >"$LAB_OUT/vmm.pid"
# As a user who has nothing but the guest's name.
cd "$LAB_OUT"
kvmprof record db1 --output db1.kvmprof 2>db1.said 3>&- &
recording=$!
until kvmprof report db1.kvmprof --by function 2>/dev/null 3>&- | grep -q do_syscall_64; do
    [ -e "/proc/$recording/exe" ] || fail 91 "kvmprof record ended: $(cat db1.said)"
    alive "the kernel isn't known yet"
    sleep 1
done
kill -TERM $recording
wait $recording
kvmprof html db1.kvmprof --output db1.html
tell over
ended
