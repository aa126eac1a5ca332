# Runs the guest under kvmprof, and a client beside it.
# Arguments: virtual CPUs of the guest, seconds, and the client's output: samples or recording.
cpus=$1 seconds=$2 client=$3 console=$LAB_OUT/console log=$LAB_OUT/kvmprof.log
# boot: starts the guest and waits until it is up, or returns kvmprof's exit status.
boot() {
    : >$console
    kvmprof run --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --cpus "$cpus" --jitter \
        --cmdline 'console=ttyS0 quiet panic=-1' --socket /run/kvmprof.sock \
        --console "file:$console" >$log 2>&1 &
    machine=$!
    until grep -q '^workload running' $console; do
        [ -e /proc/$machine/exe ] || { wait $machine; return $?; }
        usleep 50000
    done
}

# In about one boot of fifty, emulated processors make a kernel crash while it patches its own code (status 3).
tries=1
until boot; do
    status=$?
    if [ $status -ne 3 ] || [ $tries -eq 3 ]; then
        echo "kvmprof ended with status $status before its guest was up:" >&2
        tail -n 40 $console $log >&2
        exit 1
    fi
    echo "the guest crashed while it booted, which happens in emulation: starting anew" >&2
    tries=$((tries + 1))
done
echo "$(uname -r) runs kvmprof, which runs a guest whose own ps says:"
sed -n '/^processes:/,/^workload running/p' $console | tr -d '\r' | sed '1d;$d'
echo
if [ "$client" = recording ]; then
    recording=$LAB_OUT/recording
    kvmprof record --socket /run/kvmprof.sock --seconds "$seconds" --output "$recording" || { cat $log >&2; exit 1; }
    kvmprof report --sort total "$recording"
else
    kvmprof getpc --socket /run/kvmprof.sock --all "$seconds" >/tmp/samples || { cat $log >&2; exit 1; }
    kvmprof pcstat </tmp/samples
fi
status=$?
kill $machine
wait $machine
exit $status
