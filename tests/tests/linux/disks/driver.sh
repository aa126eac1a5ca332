cp /lab/raw.img /lab/disk.qcow2 /lab/constant.img /run
# A guest that is recorded while it writes its disks.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --cpus 2 --jitter \
    --cmdline "console=ttyS0 $quick nowatchdog" --record "$LAB_OUT/guest.kvmprof" \
    --disk /run/raw.img,serial=first --disk /run/disk.qcow2,format=qcow2,serial=second \
    --disk /run/constant.img,readonly,serial=third
says 'files are written'
gathered_before=$(count)
sampled 500
status guest.status.json
cp /run/guest.status.json "$LAB_OUT"
tell enough
says 'both are unmounted'
ended
cp /run/raw.img /run/disk.qcow2 /run/constant.img "$LAB_OUT"
