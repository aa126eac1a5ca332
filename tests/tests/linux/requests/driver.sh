# The same guest with the same disk under kvmprof, and under QEMU over the same transport and over PCI, one after the other.
mount -t debugfs none /sys/kernel/debug
head -c 16777216 /dev/urandom >/run/disk.img

# counts: what KVM has counted of the guest, and the run time of all threads of its VMM in ns, each as NAME VALUE.
counts() {
    for count in exits mmio_exits io_exits halt_exits irq_injections; do
        echo "$count $(cat /sys/kernel/debug/kvm/$machine-*/$count)"
    done
    cat /proc/$machine/task/*/schedstat | {
        total=0
        while read -r ran _; do total=$((total + ran)); done
        echo "ran $total"
    }
}

# requests COUNT PROCESSES: what that many requests cost the guest's VMM.
requests() {
    done_before=$(grep -c '^reads done' "$console")
    counts >"$LAB_OUT/$name.$2.before"
    tell "$1 $2"
    until [ "$(grep -c '^reads' "$console")" -gt "$done_before" ]; do
        is_over && fail 99 "over before its requests were"
        alive "$(wc -c <"$console") bytes on the console, $2 processes"
        usleep 20000
    done
    counts >"$LAB_OUT/$name.$2.after"
}

# of_qemu NAME ARGUMENT...: the guest of QEMU's.
of_qemu() {
    what=$1
    shift
    qemu "$what" 1 nowatchdog -m 256 -monitor none -drive file=/run/disk.img,if=none,id=disk,format=raw "$@"
}

for guest in kvmprof microvm pc; do
    case $guest in
    kvmprof)
        start kvmprof --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M \
            --cmdline "console=ttyS0 $quick nowatchdog" --disk /run/disk.img
        ;;
    microvm) of_qemu microvm -M microvm -device virtio-blk-device,drive=disk ;;
    pc) of_qemu pc -M q35 -device virtio-blk-pci,drive=disk ;;
    esac
    says ready
    # The first ones allocate.
    requests 200 1
    requests 3000 1
    requests 1000 4
    kill -9 $machine
    ended
done
