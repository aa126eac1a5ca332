# Exits of a guest, counted by kvmprof and by the host's perf between two moments at which no vCPU runs; then those of known processes beside others that want
# the processors, samples of each exit, and a guest that makes as many different ones as it can. It is one of kvmprof's own: programs of QEMU's guests may use no port in emulation (SIGSEGV).

# vcpus: the vCPUs' threads.
vcpus() { grep -l '^vcpu' /proc/$machine/task/*/comm | sed 's:/comm$::; s:.*/::'; }

# trace: makes an instance of the host's own tracer.
trace() {
    mkdir $traced && echo mono >$traced/trace_clock && echo 4096 >$traced/buffer_size_kb || fail 85 "there is no tracer"
}

# traced NAME: notes what it has noted, and ends it.
traced() {
    echo 0 >$traced/tracing_on
    cat $traced/trace >"$LAB_OUT/$1.trace"
    rmdir $traced
}

# trace_waits: has it note when the vCPUs' threads want a processor, and when they have one.
trace_waits() {
    trace
    for thread in $(vcpus); do
        woken="$woken${woken:+||}pid==$thread"
        switched="$switched${switched:+||}prev_pid==$thread||next_pid==$thread"
    done
    for event in "wakeup $woken" "migrate_task $woken" "switch $switched"; do
        echo "${event#* }" >"$traced/events/sched/sched_${event%% *}/filter" &&
            echo 1 >"$traced/events/sched/sched_${event%% *}/enable" || fail 85 "no events of the scheduler"
    done
}

# trace_interrupts: has the host's own tracer note the interrupts of the vCPUs' threads.
traced=/sys/kernel/tracing/instances/kvmprof
trace_interrupts() {
    trace
    for thread in $(vcpus); do echo $thread >>$traced/set_event_pid; done
    for interrupt in irq/irq_handler irq/softirq irq_vectors/local_timer irq_vectors/reschedule irq_vectors/call_function \
        irq_vectors/call_function_single; do
        echo 1 >$traced/events/${interrupt}_entry/enable && echo 1 >$traced/events/${interrupt}_exit/enable || fail 85 "no $interrupt"
    done
}

# note_time NAME: notes the host's time.
note_time() { read -r now _ </proc/uptime && echo "$now" >>"$LAB_OUT/$1.times"; }

# asked: how often the guest has said so.
asked() { grep -c '^asked' "$console"; }

# record_exits NAME PERIOD [--exits]: samples one of so many exits while known processes make some; with --exits these are counted, too, by the recording and beside it, as soon
# as it has their program's file and so whole stacks.
record_exits() {
    start_recording "$1" "kvm-exits:$2" $3
    if [ "$3" ]; then
        until kvmprof export --format folded "$LAB_OUT/$1.kvmprof" 2>/dev/null 3>&- | grep -q ';main;'; do
            before=$(asked)
            tell ask
            until [ "$(asked)" -gt "$before" ]; do
                is_over && fail 78 "over before the program's file was read"
                alive "asked $before times"
                usleep 50000
            done
        done
        note_time beside
        count_exits beside "$machine"
        note_time beside
    fi
    tell "$1"
    says "$1 ports"
    if [ "$3" ]; then
        note_time beside
        counted
        note_time beside
    fi
    end_recording "$1"
    [ -z "$3" ] || kvmprof report --exits --json "$LAB_OUT/$1.kvmprof" >"$LAB_OUT/recorded.json" 2>"$LAB_OUT/recorded.said" ||
        fail 80 "kvmprof report failed: $(cat "$LAB_OUT/recorded.said")"
}

# scheduled NAME PROCESS: notes what the scheduler has counted of the vCPUs' threads: the times for which they ran and waited, and the number of turns.
scheduled() {
    for thread in /proc/$2/task/*; do
        ! grep -q '^vcpu' "$thread/comm" || echo "${thread##*/} $(cat "$thread/schedstat")"
    done >"$LAB_OUT/$1.schedstat"
}

# page NAME: has what the collector has counted until all vCPUs stood still.
page() {
    until wget -q -O /run/page http://127.0.0.1:9000/metrics && grep '^kvmprof_guest_exits_total' /run/page >/run/counts &&
        cmp -s /run/counts /run/counts.before; do
        [ -e "/proc/$collector/exe" ] || fail 76 "the collector ended: $(cat "$LAB_OUT/collector.said")"
        mv /run/counts /run/counts.before 2>/dev/null
        sleep 3
    done
    rm /run/counts.before
    mv /run/page "$LAB_OUT/metrics.$1"
}

# meter: the collector counts the exits of the demo's guest, and kvmprof exits beside it. Those of a program called kvmprof aren't attached to.
meter() {
    cp "$(command -v kvmprof)" /run/vmm
    /run/vmm demo --socket /run/metered.sock >"$LAB_OUT/vmm.said" 2>&1 3>&- &
    vmm=$!
    printf 'sockets = []\nspool.folder = "/run/spool"\nmetrics.listen = "127.0.0.1:9000"\n[attach]\nguests = ["%s"]\ncapture = "kernel"\nexits = true\n' $vmm >/run/collect.toml
    /lab/kvmprof-collect --config /run/collect.toml 2>"$LAB_OUT/collector.said" 3>&- &
    collector=$!
    until wget -q -O - http://127.0.0.1:9000/metrics | grep -q '^kvmprof_guest_exits_total'; do
        [ -e "/proc/$vmm/exe" ] && [ -e "/proc/$collector/exe" ] || fail 75 "it ended: $(cat "$LAB_OUT/vmm.said" "$LAB_OUT/collector.said")"
        sleep 1
    done
    stand_still $vmm
    page begin
    count_exits metered $vmm
    kill -CONT $vmm
    sleep 5
    stand_still $vmm
    counted
    page end
    kill -KILL $vmm
    kill -TERM $collector
    wait $collector
}

# shared: two guests have one processor for some seconds, and each of them is counted.
shared() {
    kvmprof demo --socket /run/demo.sock >"$LAB_OUT/demo.said" 2>&1 3>&- &
    demo=$!
    until [ -S /run/demo.sock ] && grep -q '^vcpu' /proc/$demo/task/*/comm; do
        [ -e "/proc/$demo/exe" ] || fail 82 "the demo ended: $(cat "$LAB_OUT/demo.said")"
        usleep 50000
    done
    tell busy
    says 'busy vCPUs'
    stand_still $machine $demo
    taskset -ap 2 $machine >/dev/null && taskset -ap 2 $demo >/dev/null || fail 81 "no processor alone"
    count_exits shared $machine
    first=$counting
    count_exits sharing $demo
    scheduled shared.begin $machine
    scheduled sharing.begin $demo
    kill -CONT $machine $demo
    alive 'two guests have one processor'
    sleep 15
    alive 'they had it'
    stand_still $machine $demo
    scheduled shared.end $machine
    scheduled sharing.end $demo
    counted $counting
    counted $first
    kill -KILL $demo
    taskset -ap 3 $machine >/dev/null
    kill -CONT $machine
}

# Without a tracefs it says so.
start_in_group guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --cpus 2 --memory 512M --hz 0 --cmdline "console=ttyS0 $quick nokaslr memmap=16M\$0x18000000"
says 'workload running'
umount /sys/kernel/tracing /sys/kernel/debug/tracing 2>/dev/null
kvmprof exits "$machine" --seconds 1 2>"$LAB_OUT/unmounted.said" 3>&-
echo $? >"$LAB_OUT/unmounted.status"
mount -t tracefs tracefs /sys/kernel/tracing || fail 90 "there is no tracefs"

stand_still $machine
trace_interrupts
beside_perf
traced interrupts
kill -CONT $machine

# Of a guest that runs its kernel and its processes are known. Others want the processors, too.
for cpu in 0 1; do
    sh -c 'printf hog >/proc/$$/comm; while :; do :; done' 3>&- &
    hogs="$hogs $!"
done
scheduled before $machine
trace_waits
count_exits known $machine
stand_still $machine
scheduled begin $machine
echo begin >$traced/trace_marker
kill -CONT $machine
tell again
says 'again worked'
stand_still $machine
scheduled end $machine
counted
traced waits
kill -CONT $machine
kill $hogs
echo "$machine $hogs" >"$LAB_OUT/known.pids"

# Each exit is a sample, more than the emulated host can take; and so few that it can.
record_exits all 1
record_exits some 7 --exits
record_faults

count_exits many $machine
tell many
says 'many ports'
counted
kvmprof exits "$machine" --seconds 3 --interval 1 >"$LAB_OUT/table" 2>"$LAB_OUT/table.said" 3>&- ||
    fail 86 "there is no table: $(cat "$LAB_OUT/table.said")"

swap_out
record_touches swapped
record_userfaults

meter
shared
throttled

# It ends with the guest.
count_exits end $machine
tell over
wait $counting
echo $? >"$LAB_OUT/end.status"
ended
