# The guest under kvmprof, and a client beside it.
# Arguments: virtual CPUs of the guest, seconds, what the client does: samples or recording.
cpus=$1 seconds=$2 client=$3 console=/tmp/console log=/tmp/kvmprof.log
kvmprof run --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --cpus "$cpus" --jitter \
    --cmdline 'console=ttyS0 quiet panic=-1' --socket /run/kvmprof.sock \
    --console "file:$console" >$log 2>&1 &
machine=$!
until grep -q '^workload running' $console 2>/dev/null; do
    if [ ! -e /proc/$machine/exe ]; then
        wait $machine
        echo "kvmprof ended with status $? before its guest was up:" >&2
        tail -n 40 $console $log >&2
        exit 1
    fi
    usleep 50000
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
