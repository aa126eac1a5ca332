# Exits of a guest, counted and sampled.

# stand_still PROCESS...: returns when no thread of the VMMs runs any more.
stand_still() {
    kill -STOP "$@"
    for vmm in "$@"; do
        for thread in /proc/$vmm/task/*; do
            until grep -q '^State:.T' "$thread/status"; do usleep 10000; done
        done
    done
}

# count_exits NAME PROCESS: starts kvmprof exits, and waits until it counts.
count_exits() {
    counted=$1
    kvmprof exits "$2" --json >"$LAB_OUT/$counted.json" 2>"$LAB_OUT/$counted.said" 3>&- &
    counting=$!
    until grep -q '^Counting' "$LAB_OUT/$counted.said"; do
        [ -e "/proc/$counting/exe" ] || fail 92 "kvmprof exits ended: $(cat "$LAB_OUT/$counted.said")"
        usleep 50000
    done
    alive "exits are counted: $1"
}

# counted [PROCESS]: ends it.
counted() {
    kill -TERM ${1:-$counting}
    wait ${1:-$counting} || fail 91 "kvmprof exits failed: $(cat "$LAB_OUT/$counted.said")"
}

# beside_perf: exits while the guest works, counted by kvmprof and by the host's perf. The vCPUs stand still then.
beside_perf() {
    mkfifo /run/enough
    stand_still "$machine"
    count_exits both "$machine"
    /usr/bin/perf kvm -o /run/perf.data stat record -p "$machine" -- \
        /bin/sh -c 'echo >/run/perf.ready; read -r word </run/enough' >"$LAB_OUT/perf.said" 2>&1 3>&- &
    perf=$!
    until [ -e /run/perf.ready ]; do
        [ -e "/proc/$perf/exe" ] || fail 89 "perf ended: $(cat "$LAB_OUT/perf.said")"
        usleep 50000
    done
    kill -CONT "$machine"
    tell work
    says worked
    stand_still "$machine"
    counted
    echo enough >/run/enough
    wait $perf || fail 88 "perf failed: $(cat "$LAB_OUT/perf.said")"
    /usr/bin/perf kvm -i /run/perf.data stat report >"$LAB_OUT/perf.report" 2>&1 3>&- ||
        fail 87 "perf reports nothing: $(cat "$LAB_OUT/perf.said")"
    alive 'perf has reported'
}

# start_recording NAME EVENT [--exits]: samples one of so many events, and waits until it does. Each look makes an event that is rare otherwise.
page=2048
start_recording() {
    kvmprof record "$machine" --event "$2" $3 --output "$LAB_OUT/$1.kvmprof" >"$LAB_OUT/$1.said" 2>&1 3>&- &
    recording=$!
    # The file has its name once there are samples.
    until [ -s "$LAB_OUT/$1.kvmprof" ]; do
        [ -e "/proc/$recording/exe" ] || fail 84 "kvmprof record ended: $(cat "$LAB_OUT/$1.said")"
        if [ "$2" = page-faults:1 ]; then
            tell "warm $page"
            page=$((page + 1))
            usleep 450000
        fi
        usleep 50000
    done
}

# end_recording NAME
end_recording() {
    kill -TERM $recording
    wait $recording || fail 83 "kvmprof record failed: $(cat "$LAB_OUT/$1.said")"
}

# touched NAME: how many of the pages that the guest touches then the recording has.
touched() {
    kvmprof export --format pages "$LAB_OUT/$1.kvmprof" 2>/dev/null 3>&- |
        awk '/^0x180[0-7]/ { bytes += $2 } END { print bytes / 4096 }'
}

# record_touches NAME: samples each fault of guest memory while the guest touches some pages, until the recording has all of them.
record_touches() {
    start_recording "$1" page-faults:1
    tell touch
    until [ "$(touched "$1")" = 128 ]; do
        is_over && fail 77 "over before its faults were recorded"
        alive "touches pages: $1"
        usleep 500000
    done
    end_recording "$1"
}

# record_faults: those of pages that the host makes one by one.
record_faults() {
    echo never >/sys/kernel/mm/transparent_hugepage/enabled
    record_touches touch
    kvmprof report --faults --json "$LAB_OUT/touch.kvmprof" >"$LAB_OUT/faults.json" 2>"$LAB_OUT/faults.said" &&
        kvmprof report --faults "$LAB_OUT/touch.kvmprof" >"$LAB_OUT/faults.table" 2>>"$LAB_OUT/faults.said" &&
        kvmprof export --format pages "$LAB_OUT/touch.kvmprof" --output "$LAB_OUT/pages" 2>>"$LAB_OUT/faults.said" ||
        fail 79 "kvmprof reports no faults: $(cat "$LAB_OUT/faults.said")"
}
