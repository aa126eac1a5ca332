#!/bin/sh
# First process of the lab machine. Ports, in the order QEMU was given them:
# 1 standard output, 2 standard error, 3 output folder (tar), 4 control.
export PATH=/lab:/bin HOME=/root LAB_OUT=/out

mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
mount -t tracefs none /sys/kernel/tracing
mkdir -p /dev/pts /dev/shm /out /lab
mount -t devpts none /dev/pts
mount -t tmpfs none /dev/shm
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
ip link set lo up
hostname lab

for module in /modules/*.ko; do
    [ -e "$module" ] && { insmod "$module" || echo "lab: $module does not load"; }
done

# The ports appear after a handshake with QEMU.
tries=0
until [ -e /dev/vport0p1 ] && [ -e /dev/vport0p2 ] && [ -e /dev/vport0p3 ] && [ -e /dev/vport0p4 ]; do
    tries=$((tries + 1))
    if [ "$tries" -gt 6000 ]; then
        echo 'lab: the virtio-serial ports did not appear'
        poweroff -f
    fi
    usleep 10000
done
exec 4<>/dev/vport0p4
if [ ! -e /dev/kvm ]; then
    echo 'lab: there is no /dev/kvm: this QEMU emulates no SVM, or this kernel has no KVM for it'
    poweroff -f
fi
chmod 666 /dev/kvm
echo 0 >/proc/sys/kernel/kptr_restrict
ulimit -c 0
ulimit -n 65536
ulimit -l unlimited

keeper=$(/keeper) || poweroff -f

# A port can be opened only once at a time, so it can't serve as /dev/stdout.
mkfifo /run/stdout /run/stderr
cat </run/stdout >/dev/vport0p1 4>&- &
stdout=$!
cat </run/stderr >/dev/vport0p2 4>&- &
stderr=$!

# end_all ID...: ends all processes but the first one, these, the kernel's own, and those that can't be ended, such as one that waits for a
# disk.
end_all() {
    left=yes
    rounds=0
    while [ "$left" ] && [ "$rounds" -lt 500 ]; do
        rounds=$((rounds + 1))
        [ "$rounds" -eq 1 ] || usleep 10000
        left=
        for process in /proc/[0-9]*; do
            id=${process#/proc/}
            case " 1 $* " in *" $id "*) continue ;; esac
            # Kernel threads have no program.
            if readlink "$process/exe" >/dev/null && kill -9 "$id" 2>/dev/null; then left=yes; fi
        done
    done
}

# The host may ask for the end of the command, and for its output so far.
(
    read -r word <&4
    [ "$word" = stop ] || exit
    echo 'lab: the host stops the command'
    read -r own rest </proc/self/stat
    end_all "$stdout" "$stderr" "$keeper" "$own"
) &

echo ready >&4
cd /root
sh /command </dev/null >/run/stdout 2>/run/stderr 4>&-
status=$?

# Processes that the command left running would keep the streams open.
end_all "$stdout" "$stderr" "$keeper"
wait "$stdout"
wait "$stderr"

cd /
if [ -e /want-out ]; then
    tar -C /out -cf /dev/vport0p3 .
    # When the machine powers off, output that QEMU has not passed on yet is lost, and the host may receive it slowly.
    while read -r word <&4; do
        [ "$word" = taken ] && break
    done
fi
echo "exit $status" >&4
poweroff -f
