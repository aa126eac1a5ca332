# Runs the guest under kvmprof. The guest itself profiles and prints.
# Arguments: virtual CPUs of the guest, seconds.
cpus=$1 seconds=$2 console=$LAB_OUT/console log=$LAB_OUT/kvmprof.log
kvmprof run --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --cpus "$cpus" --jitter \
    --cmdline "console=ttyS0 quiet panic=-1 seconds=$seconds" --console "file:$console" >$log 2>&1
status=$?
if [ $status -ne 0 ] || ! grep -q '^report ends' $console; then
    echo "kvmprof ended with status $status before its guest was done:" >&2
    tail -n 40 $console $log >&2
    exit 1
fi
tr -d '\r' <$console | sed -n '/^report begins/,/^report ends/p' | sed '1d;$d'
