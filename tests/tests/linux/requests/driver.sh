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

# qemu NAME ARGUMENT...
qemu() {
    name=$1
    shift
    console=$LAB_OUT/$name.console
    mkfifo "/run/$name.input"
    exec 3<>"/run/$name.input"
    : >"$console"
    /usr/bin/qemu-system-x86_64 -accel kvm -cpu host -smp 1 -m 256 -no-reboot -nic none -vga none -display none \
        -serial stdio -monitor none -drive file=/run/disk.img,if=none,id=disk,format=raw "$@" \
        -kernel /lab/vmlinuz -initrd /lab/guest.cpio -append "console=ttyS0 quiet panic=-1 nowatchdog" \
        <"/run/$name.input" >"$console" 2>"$LAB_OUT/$name.stderr" 3>&- &
    machine=$!
}

for guest in kvmprof microvm pc; do
    case $guest in
    kvmprof)
        start kvmprof --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M \
            --cmdline 'console=ttyS0 quiet panic=-1 nowatchdog' --disk /run/disk.img
        ;;
    microvm) qemu microvm -M microvm -device virtio-blk-device,drive=disk ;;
    pc) qemu pc -M q35 -device virtio-blk-pci,drive=disk ;;
    esac
    says ready
    # The first ones allocate.
    requests 200 1
    requests 3000 1
    requests 1000 4
    kill -9 $machine
    ended
done
