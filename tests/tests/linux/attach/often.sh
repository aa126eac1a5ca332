# holdings: what could be left behind: the VMM's descriptors and threads, and all tracers, eBPF programs and perf events of the host.
holdings() {
    echo "descriptors $(ls "/proc/$machine/fd" | wc -l)"
    echo "threads $(ls "/proc/$machine/task" | wc -l)"
    echo "traced $(cat /proc/[0-9]*/task/*/status 2>/dev/null | grep -c '^TracerPid:.*[1-9]')"
    echo "programs $(($(programs) - of_lab))"
    echo "processes $(processes)"
}

# programs: how many eBPF programs and perf events processes have open. The lab itself has some.
programs() { ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c 'anon_inode:bpf\|anon_inode:\[perf_event\]'; }

# processes: how many run kvmprof.
processes() { ls -l /proc/[0-9]*/exe 2>/dev/null | grep -c '/kvmprof$'; }

# alone: waits until no process of kvmprof is left.
alone() {
    until [ "$(processes)" = 0 ]; do usleep 20000; done
}

# beats: how many seconds the guest has counted.
beats() { grep -c '^beat' "$console"; }

# goes_on: waits until the guest has counted some more.
goes_on() {
    before=$(beats)
    until [ "$(beats)" -ge $((before + 3)) ]; do
        is_over && fail 90 "over, after attachment $round"
        alive "$(beats) beats"
        usleep 200000
    done
}

# capture: how this round takes samples.
capture() { [ $((round % 2)) -eq 0 ] && echo ptrace || echo kernel; }

of_lab=$(programs)
qemu guest 2 '' -M pc -m 512
says 'workload running'
# The first one loads what the host's kernel keeps.
round=0
attach first guest --capture kernel
detach
alone
holdings >"$LAB_OUT/before"
hz=200
while [ "$round" -lt 200 ]; do
    round=$((round + 1))
    # Most don't look for the guest's kernel, which takes seconds in emulation.
    set -- --pid-at none
    [ $((round % 40)) -gt 1 ] || set --
    attach often guest --capture "$(capture)" "$@"
    # Some end while they sample, some before they do.
    if [ $((round % 5)) -lt 2 ]; then
        until [ "$(count)" -ge 3 ]; do usleep 20000; done
    fi
    detach
    [ "$(cat "$LAB_OUT/often.attach.status")" = 0 ] || fail 91 "attachment $round: $(cat "$LAB_OUT/often.attach")"
    alive "$round attachments"
done
goes_on
alone
holdings >"$LAB_OUT/attached"

round=0
while [ "$round" -lt 100 ]; do
    round=$((round + 1))
    kvmprof attach guest --pid-at none --record /run/killed.kvmprof --hz 500 --capture "$(capture)" 2>/run/killed.attach 3>&- &
    attached=$!
    usleep $((RANDOM * 20))
    # One of both processes, in turn.
    if [ $((round % 4)) -lt 2 ]; then
        kill -9 $attached
    else
        for process in /proc/[0-9]*; do
            [ "$(cat "$process/comm" 2>/dev/null)" = kvmprof-tracer ] && kill -9 "${process#/proc/}"
        done
    fi
    kill -9 $attached 2>/dev/null
    wait $attached
    alone
    alive "$round killed"
    rm -f /run/killed.kvmprof*
done
goes_on
holdings >"$LAB_OUT/killed"
