# Some boots of the same guest, each of which is recorded from its first instruction on. Each guest prints what its kernel has measured
# of its initcalls when all is over: on the way, the console would take most of the time.
name=boot
# A guest that has to measure the rate of its time-stamp counter first measures times of 4 ms until then, and wrong ones on a busy host.
khz=$(sed -n 's/^cpu MHz.*: //p' /proc/cpuinfo | head -n 1 | tr -d .)
# A kernel that is emulated crashes in some of its boots, and with it the command ends: then all are made again.
for attempt in 1 2 3 4; do
    rm -rf "$LAB_OUT/boots"
    kvmprof boot --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --hz 500 --runs "$(cat /lab/boots)" --console stdio \
        --cmdline "console=ttyS0 panic=-1 loglevel=3 initcall_debug log_buf_len=4M tsc=reliable tsc_early_khz=$khz" --until "workload running" \
        --output "$LAB_OUT/boots" --top 1000000 </dev/null >"$LAB_OUT/boot.stdout" 2>"$LAB_OUT/boot.stderr" &
    machine=$!
    until is_over; do
        alive "attempt $attempt: $(wc -c <"$LAB_OUT/boot.stdout") bytes of output"
        usleep 100000
    done
    wait $machine
    status=$?
    [ $status -ne 0 ] || break
    echo "attempt $attempt: status $status: $(cat "$LAB_OUT/boot.stderr")"
done
echo $status >"$LAB_OUT/boot.status"
