# Exits of a guest, counted by kvmprof and by the host's perf between two moments at which no vCPU runs; then those of known processes beside others that want
# the processors, samples of each exit, and a guest that makes as many different ones as it can. It is one of kvmprof's own: programs of QEMU's guests may use no port in emulation (SIGSEGV).

# stand_still: returns when no thread of the VMM runs any more.
stand_still() {
    kill -STOP $machine
    for thread in /proc/$machine/task/*; do
        until grep -q '^State:.T' "$thread/status"; do usleep 10000; done
    done
}

# count_exits NAME ARGUMENT...: starts kvmprof exits, and waits until it counts.
count_exits() {
    counted=$1
    shift
    kvmprof exits "$machine" --json "$@" >"$LAB_OUT/$counted.json" 2>"$LAB_OUT/$counted.said" 3>&- &
    counting=$!
    until grep -q '^Counting' "$LAB_OUT/$counted.said"; do
        [ -e "/proc/$counting/exe" ] || fail 92 "kvmprof exits ended: $(cat "$LAB_OUT/$counted.said")"
        usleep 50000
    done
}

# counted: ends it.
counted() {
    kill -TERM $counting
    wait $counting || fail 91 "kvmprof exits failed: $(cat "$LAB_OUT/$counted.said")"
}

# perf_records NAME ARGUMENT...: starts a perf that records the VMM's threads until enough, and waits until it does.
perf_records() {
    what=$1
    shift
    mkfifo "/run/$what.enough"
    /usr/bin/perf "$@" -p $machine -- /bin/sh -c "echo >/run/$what.ready; read -r word </run/$what.enough" \
        >"$LAB_OUT/$what.said" 2>&1 3>&- &
    perf=$!
    until [ -e "/run/$what.ready" ]; do
        [ -e "/proc/$perf/exe" ] || fail 89 "perf ended: $(cat "$LAB_OUT/$what.said")"
        usleep 50000
    done
}

# enough NAME PROCESS: ends it.
enough() {
    echo enough >"/run/$1.enough"
    wait $2 || fail 88 "perf failed: $(cat "$LAB_OUT/$1.said")"
}

# scheduled NAME: notes what the scheduler has counted of the vCPUs' threads: the times for which they ran and waited, and the number of turns.
scheduled() {
    for thread in /proc/$machine/task/*; do
        ! grep -q '^vcpu' "$thread/comm" || echo "${thread##*/} $(cat "$thread/schedstat")"
    done >"$LAB_OUT/$1.schedstat"
}

# Without a tracefs it says so.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --cpus 2 --memory 512M --hz 0 --cmdline "console=ttyS0 $quick nokaslr"
says 'workload running'
umount /sys/kernel/tracing /sys/kernel/debug/tracing 2>/dev/null
kvmprof exits "$machine" --seconds 1 2>"$LAB_OUT/unmounted.said" 3>&-
echo $? >"$LAB_OUT/unmounted.status"
mount -t tracefs tracefs /sys/kernel/tracing || fail 90 "there is no tracefs"

stand_still
count_exits both
perf_records exits kvm -o /run/perf.data stat record
exits=$perf
for interrupt in irq:irq_handler irq:softirq irq_vectors:local_timer irq_vectors:reschedule irq_vectors:call_function irq_vectors:call_function_single; do
    events="$events${events:+,}${interrupt}_entry,${interrupt}_exit"
done
perf_records interrupts record -o /run/interrupts.data -m 1024 -e "$events"
interrupts=$perf
kill -CONT $machine
tell work
says worked
stand_still
counted
enough exits $exits
enough interrupts $interrupts
kill -CONT $machine
/usr/bin/perf script -i /run/interrupts.data --ns -F tid,time,event,trace >"$LAB_OUT/interrupts.perf" 2>"$LAB_OUT/interrupts.said" 3>&- ||
    fail 83 "perf has no interrupts: $(cat "$LAB_OUT/interrupts.said")"
/usr/bin/perf kvm -i /run/perf.data stat report >"$LAB_OUT/perf.report" 2>&1 3>&- ||
    fail 87 "perf reports nothing: $(cat "$LAB_OUT/exits.said")"
alive 'perf has reported'

# Of a guest that runs its kernel and its processes are known. Others want the processors, too.
for cpu in 0 1; do
    sh -c 'printf hog >/proc/$$/comm; while :; do :; done' 3>&- &
    hogs="$hogs $!"
done
scheduled before
count_exits known
stand_still
scheduled begin
kill -CONT $machine
tell again
says 'again worked'
stand_still
scheduled end
counted
kill -CONT $machine
kill $hogs
echo "$machine $hogs" >"$LAB_OUT/known.pids"

# Each exit is a sample. The file has its name once there are some.
kvmprof record "$machine" --event kvm-exits:1 --output "$LAB_OUT/sampled.kvmprof" >"$LAB_OUT/sampled.said" 2>&1 3>&- &
recording=$!
until [ -s "$LAB_OUT/sampled.kvmprof" ]; do
    [ -e "/proc/$recording/exe" ] || fail 85 "kvmprof record ended: $(cat "$LAB_OUT/sampled.said")"
    usleep 50000
done
tell sampled
says 'sampled ports'
kill -TERM $recording
wait $recording || fail 84 "kvmprof record failed: $(cat "$LAB_OUT/sampled.said")"

count_exits many
tell many
says 'many ports'
counted
kvmprof exits "$machine" --seconds 3 --interval 1 >"$LAB_OUT/table" 2>"$LAB_OUT/table.said" 3>&- ||
    fail 86 "there is no table: $(cat "$LAB_OUT/table.said")"

# It ends with the guest.
count_exits end
tell over
wait $counting
echo $? >"$LAB_OUT/end.status"
ended
